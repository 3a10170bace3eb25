"""Loss by token index: in-context learning as the slope of the loss against the logarithm of the index.

Texts repeat a random cycle of letters and sometimes jump. A hand-made induction head (two layers) and a head that only
knows which letters occurred (one layer) predict each next letter [Olsson et al. 2022].
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table
from anyformer_course.shows.induction import heads

LETTERS = 26


def example(*, cycle: int = 10, length: int = 64, jump: float = 0.05, texts: int = 60, seed: int = 0) -> Shown:
    """Measure the loss at each index of `texts` texts with a cycle of `cycle` letters."""
    if not 2 <= cycle <= LETTERS or not 8 <= length <= 256:
        raise ValueError(f"cycle must be 2 to {LETTERS} and length 8 to 256, got {cycle} and {length}")
    draws = torch.Generator().manual_seed(seed)
    losses = {1: torch.zeros(length - 1), 2: torch.zeros(length - 1)}
    for _ in range(texts):
        letters = torch.randperm(LETTERS, generator=draws)[:cycle]
        moves = torch.where(torch.rand(length, generator=draws) < jump,
                            torch.randint(0, cycle, (length,), generator=draws), torch.tensor(1))  # fmt: skip
        ids = letters[moves.cumsum(0) % cycle]
        for layers in losses:
            losses[layers] += loss_by_index(ids, layers) / texts
    marks = [2**i for i in range(1, int(math.log2(length)) + 1)]
    means = {layers: [float(loss[mark // 2 : mark].mean()) for mark in marks] for layers, loss in losses.items()}
    slopes: dict[int, list[Any]] = {
        layers: [None, *((b - a) / math.log(2) for a, b in itertools.pairwise(mean))] for layers, mean in means.items()
    }
    rows = [[f"{mark // 2 + 1} to {mark}" if mark > 2 else "2", means[1][i], means[2][i], slopes[1][i], slopes[2][i]]
            for i, mark in enumerate(marks)]  # fmt: skip
    steepest = min(range(1, len(marks)), key=lambda i: slopes[2][i])

    def draw() -> Any:
        figure, axes = new(2, 1, 10, 3.6)
        for layers, name in ((1, "one layer"), (2, "two layers, induction")):
            axes[0, 0].plot(range(1, length), losses[layers].tolist(), label=name)
            axes[0, 1].plot(marks[1:], slopes[layers][1:], "o-", label=name)
        axes[0, 0].set(xscale="log", xlabel="token index", ylabel="loss (nats)")
        axes[0, 1].set(xscale="log", xlabel="token index", ylabel="d loss / d ln(index)")
        axes[0, 1].xaxis.set_minor_formatter("")  # labels between the powers of ten would overlap
        axes[0, 0].legend()
        return figure

    return Shown(
        f"the loss of the induction head falls from {means[2][0]:.2f} to {means[2][-1]:.2f}, fastest at tokens "
        f"{rows[steepest][0]} ({slopes[2][steepest]:.2f} per e-fold of the index); one layer ends "
        f"at {means[1][-1]:.2f}.",
        [Table("mean loss by token index, and its derivative with respect to the logarithm of the index",
               ("tokens", "loss, one layer", "loss, two layers", "derivative, one", "derivative, two"), rows)],
        draw,
    )  # fmt: skip


def loss_by_index(ids: Tensor, layers: int) -> Tensor:
    """Return the loss of each letter after the first (T - 1)."""
    x = torch.eye(LETTERS)[ids]
    chances = (x.cumsum(0) + 0.5) / (torch.arange(1, len(ids) + 1)[:, None] + 0.5 * LETTERS)  # shares so far, smoothed
    if layers == 2:  # if the current letter occurred before, trust the induction head
        known = (x * (x.cumsum(0) - x)).sum(-1, keepdim=True) > 0
        chances = torch.where(known, 0.9 * (heads(x, 2, 8.0)[1] @ x) + 0.1 * chances, chances)
    return -chances[:-1].gather(1, ids[1:, None])[:, 0].log()
