"""Masks: which words each word attends to, before and after the softmax.

A masked score is minus infinity, so its weight is exactly 0 and the other weights of the row still sum to 1. With a
causal mask no result depends on later words, so one pass gives the predictions at all positions.
"""

from __future__ import annotations

import math
from typing import Any

import torch

import anyformer as af
from anyformer.look.figures import heat_maps
from anyformer.runtime.visibility import Rows
from anyformer.specs.messages import nearest
from anyformer_course.shown import Shown, Table
from anyformer_course.words import vectors


def kinds(size: int) -> dict[str, Any]:
    P = af.parts
    both = P.Window(size=size, ahead=True)
    return {
        "full": P.Full(),
        "causal": P.Causal(),
        "window": both,
        "causal-window": P.Window(size=size) & P.Causal(),
        "prefix": P.Causal() | P.SameBlock(size=size) & P.Global(first=size),
        "global": P.Global(first=1) | both,
        "blocks": P.SameBlock(size=size),
        "dilated": P.Window(size=2 * size, ahead=True) & P.Dilated(step=2),
        "strided": P.Causal() & (P.Window(size=size) | P.Strided(stride=size)),
        "fixed": P.Causal() & (P.SameBlock(size=size) | P.Fixed(stride=size)),
    }


def example(
    text: str = "the cat sat on the mat", *, mask: str = "causal", size: int = 2, width: int = 8, seed: int = 0
) -> Shown:
    """Show visible words, scores and weights under `mask`, and which results change if the last word changes."""
    if mask not in (masks := kinds(size)):
        raise ValueError(f"no mask is called {mask!r}; {nearest(mask, masks)}")
    words, x = vectors(text, width, seed)
    T = len(words)
    index = torch.arange(T)
    visible = masks[mask].allows(torch.zeros(1, 1, dtype=torch.long), index[:, None], index[None], Rows()).expand(T, T)
    scores, weights, results = attend(x, visible, seed)
    changed = x.clone()
    changed[-1] = -changed[-1]  # a different last word
    moved = (attend(changed, visible, seed)[2] - results).norm(dim=-1)
    unmoved = int((moved < 1e-6).sum())

    def draw() -> Any:
        maps = [visible.float(), weights.where(visible, torch.nan)]
        return heat_maps(maps, [f"{mask}: visible words", "weights"], "rows attend to columns", words, limits=(0, 1))

    return Shown(
        f"With the {mask} mask {int(visible.sum())} of {T * T} pairs are visible; if the last word changes, "
        f"{unmoved} of {T} results stay the same.",
        [
            Table("visible", ("word", *words), [[w, *map(int, row)] for w, row in zip(words, visible, strict=True)]),
            Table("scores", ("word", *words), [[w, *hide(row)] for w, row in zip(words, scores, strict=True)]),
            Table("weights", ("word", *words), [[w, *row] for w, row in zip(words, weights.tolist(), strict=True)]),
            Table(
                "after the last word changes",
                ("word", "words that it sees", "change of its result"),
                [[w, int(row.sum()), float(m)] for w, row, m in zip(words, visible, moved, strict=True)],
            ),
        ],
        draw,
    )


def hide(scores: torch.Tensor) -> list[Any]:
    """Return the scores as numbers, and masked ones as "-inf" (JSON has no infinity)."""
    return ["-inf" if score == -math.inf else score for score in scores.tolist()]


def attend(x: torch.Tensor, visible: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return scores, weights and results of one head with random projections."""
    width, draws = x.shape[-1], torch.Generator().manual_seed(seed)
    q, k, v = (x @ torch.randn(width, width, generator=draws) / math.sqrt(width) for _ in range(3))
    scores = (q @ k.T / math.sqrt(width)).masked_fill(~visible, -math.inf)
    weights = scores.softmax(-1)
    return scores, weights, weights @ v
