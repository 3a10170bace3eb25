"""Does the score of two words depend only on their distance? The same two words, moved together through a text.

Added vectors (learned or sinusoids) give (x + p_i) W (y + p_j), whose mixed terms depend on i and j. Rotary positions
rotate q and k, so only i - j is left. T5 and ALiBi add a number that depends on i - j to the score.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from anyformer.look.figures import new
from anyformer.specs.field_types import Even
from anyformer_course.shown import Shown, Table
from anyformer_course.shows.positions import position_vectors
from anyformer_course.table import tiny
from anyformer_course.words import vectors

SCHEMES = ("none", "learned", "sinusoidal", "T5", "ALiBi", "rotary")
DISTANCES = (0, 1, 2, 4, 8)


@torch.no_grad()
def example(text: str = "we know", *, moves: int = 12, width: Even = 16, seed: int = 0) -> Shown:
    """Compute the score of the first word of `text` (query) for the last (key) at `moves` places of a text."""
    from anyformer.parts.position.bias import Alibi, BucketedBias
    from anyformer.parts.position.rotary import Rope, RopeModule
    from anyformer.runtime.context import Context
    from anyformer.specs.part import Site

    words, x = vectors(text, width, seed)
    if len(words) < 2 or not 2 <= moves <= 64:
        raise ValueError("write at least two words; moves must be from 2 to 64")
    draws, apart = torch.Generator().manual_seed(seed), len(words) - 1
    wq, wk = (torch.randn(width, width, generator=draws) / math.sqrt(width) for _ in "qk")
    rope = RopeModule(Rope(), width)

    site = Site(width=width, address="position")
    t5 = BucketedBias(num_heads=1, num_buckets=8, max_distance=16).build(site)
    torch.nn.init.normal_(t5.table.weight, generator=draws)
    alibi = Alibi(num_heads=8).build(site)  # its first head has the slope 0.5

    def score(scheme: str, place: int, apart: int) -> float:
        first, last = x[0], x[-1]
        if scheme in ("learned", "sinusoidal"):
            p = position_vectors(scheme, max(moves, DISTANCES[-1] + 1) + len(words), width)
            first, last = first + p[place], last + p[place + apart]
        qk = torch.stack((first @ wq, last @ wk))
        if scheme == "rotary":
            index = torch.tensor([place, place + apart])
            qk = rope.rotate(qk[None, None], qk[None, None], Context(index=index, positions=index[None]))[0][0, 0]
        bias = 0.0
        if scheme == "T5":
            bias = float(t5.table(t5.bucket(torch.tensor(apart)))[0])
        elif scheme == "ALiBi":
            bias = float(alibi.fall(torch.tensor([[[apart]]]))[0, 0])
        return float(qk[0] @ qk[1] / math.sqrt(width)) + bias

    scores = {scheme: [score(scheme, place, apart) for place in range(moves)] for scheme in SCHEMES}
    by_distance = [[d, *(score(scheme, 0, d) for scheme in SCHEMES)] for d in DISTANCES]
    spread = {scheme: max(each) - min(each) for scheme, each in scores.items()}

    def draw() -> Any:
        figure, axes = new(2, 1, 10, 3.8)
        for i, (scheme, each) in enumerate(scores.items()):
            axes[0, 0].plot(each, marker="o", markersize=4, label=scheme)
            axes[0, 1].plot(DISTANCES, [row[i + 1] for row in by_distance], marker="o", markersize=4)
        title = f"{words[0]!r} and {words[-1]!r}"
        axes[0, 0].set(xlabel=f"position of {words[0]!r}", ylabel="score", title=f"{title}, moved together")
        axes[0, 1].set(xlabel="distance of the two words", title=f"{title}, farther apart")
        axes[0, 0].legend(fontsize=8)
        for axis in axes.flat:
            axis.grid(alpha=0.3)
        return figure

    return Shown(
        f"Moved together, the score of {words[0]!r} and {words[-1]!r} spreads over {spread['sinusoidal']:.2f} with "
        f"sinusoids, {spread['learned']:.2f} with learned positions and {tiny(spread['rotary'])} with rotary "
        "positions.",
        [
            Table("score by position", ("position", *SCHEMES),
                  [[i, *(scores[scheme][i] for scheme in SCHEMES)] for i in range(moves)]),
            Table(f"score if {words[-1]!r} is farther away (distance 0: the same position)", ("distance", *SCHEMES),
                  by_distance),
            Table("largest minus smallest score of the moved words", ("scheme", "spread"),
                  [[scheme, spread[scheme]] for scheme in SCHEMES]),
        ],
        draw,
    )  # fmt: skip
