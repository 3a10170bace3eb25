"""Sparse patterns: window, dilated, global and random tokens: pairs that are left, and layers until all words meet.

Longformer combines a window with global tokens, Big Bird adds random ones. Words that are far apart exchange
information through several layers, or through a global token in two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.look.figures import heat_maps
from anyformer_course.shown import Shown, Table


def example(tokens: int = 64, *, window: int = 4, first: int = 1, random: int = 2, dilation: int = 3) -> Shown:
    """Compare patterns over `tokens` tokens: `window` tokens to each side (the token included), `first` global tokens,
    `random` tokens per row, and a window with gaps of `dilation`."""
    from anyformer.parts.mask import Dilated, Full, Global, RandomBlocks, Window
    from anyformer.runtime.visibility import Rows

    tokens = int(tokens)
    if not 8 <= tokens <= 512 or not 2 <= window <= tokens:
        raise ValueError("tokens must be from 8 to 512, and window from 2 to tokens")
    near, everyone = Window(size=window, ahead=True), Global(first=first)
    scattered = RandomBlocks(size=1, per_row=random, num_blocks=tokens)
    wide = Window(size=dilation * (window - 1) + 1, ahead=True) & Dilated(step=dilation)
    kinds = {
        "full": Full(),
        "window": near,
        "dilated window": wide,
        "global": everyone,
        "random": scattered,
        "Longformer: window or global": near | everyone,
        "Big Bird: window, global or random": near | everyone | scattered,
    }
    index, zero = torch.arange(tokens), torch.zeros(1, 1, dtype=torch.long)
    allowed = {
        name: mask.allows(zero, index[:, None], index[None, :], Rows()).expand(tokens, tokens)
        for name, mask in kinds.items()
    }
    rows = [
        [name, int(each.sum()), float(each.float().mean()), int(each.sum(-1).median()), layers(each)]
        for name, each in allowed.items()
    ]
    by_name = {row[0]: row for row in rows}

    def draw() -> Any:
        short = [name.partition(":")[0] for name in allowed]
        return heat_maps([each.float() for each in allowed.values()], short, "rows attend to columns", limits=(0, 1))

    bird = by_name["Big Bird: window, global or random"]
    return Shown(
        f"Big Bird's pattern keeps {bird[2]:.0%} of the pairs and connects all tokens in {bird[4]} layers; the window "
        f"alone needs {by_name['window'][4]}.",
        [Table(f"{tokens} tokens", ("pattern", "pairs", "share", "pairs per token",
                                    "layers to connect all"), rows)],
        draw,
    )  # fmt: skip


def layers(allowed: Tensor) -> int | None:
    """Return the number of layers after which every token depends on every token, or None if never."""
    step = reach = allowed.float()
    for number in range(1, len(allowed) + 1):
        if bool((reach > 0).all()):
            return number
        reach = ((reach @ step) > 0).float()
    return None
