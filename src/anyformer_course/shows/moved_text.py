"""Does the score of two words depend only on their distance? The same two words, moved together through a text.

Added vectors (learned or sinusoids) give (x + p_i) W (y + p_j), whose mixed terms depend on i and j. Rotary positions
rotate q and k, so only i - j is left.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table
from anyformer_course.shows.positions import position_vectors
from anyformer_course.words import vectors

SCHEMES = ("none", "learned", "sinusoidal", "rotary")


@torch.no_grad()
def example(text: str = "we know", *, moves: int = 12, width: int = 16, seed: int = 0) -> Shown:
    """Compute the score of the first word of `text` (query) for the last (key) at `moves` places of a text."""
    from anyformer.parts.position.rotary import Rope, RopeModule
    from anyformer.runtime.context import Context

    words, x = vectors(text, width, seed)
    if len(words) < 2 or not 2 <= moves <= 64:
        raise ValueError("write at least two words; moves must be from 2 to 64")
    draws, apart = torch.Generator().manual_seed(seed), len(words) - 1
    wq, wk = (torch.randn(width, width, generator=draws) / math.sqrt(width) for _ in "qk")
    rope = RopeModule(Rope(), width)

    def score(scheme: str, place: int) -> float:
        first, last = x[0], x[-1]
        if scheme in ("learned", "sinusoidal"):
            p = position_vectors(scheme, moves + apart, width)
            first, last = first + p[place], last + p[place + apart]
        qk = torch.stack((first @ wq, last @ wk))
        if scheme == "rotary":
            index = torch.tensor([place, place + apart])
            qk = rope.rotate(qk[None, None], qk[None, None], Context(index=index, positions=index[None]))[0][0, 0]
        return float(qk[0] @ qk[1] / math.sqrt(width))

    scores = {scheme: [score(scheme, place) for place in range(moves)] for scheme in SCHEMES}
    spread = {scheme: max(each) - min(each) for scheme, each in scores.items()}

    def draw() -> Any:
        figure, axes = new(1, 1, 7, 4)
        for scheme, each in scores.items():
            axes[0, 0].plot(each, marker="o", label=scheme)
        axes[0, 0].set(xlabel=f"position of {words[0]!r}", ylabel="score", title=f"{words[0]} - {words[-1]}, moved")
        axes[0, 0].legend()
        axes[0, 0].grid(alpha=0.3)
        return figure

    return Shown(
        f"Moved together, the score of {words[0]!r} and {words[-1]!r} spreads over {spread['sinusoidal']:.2f} with "
        f"sinusoids, {spread['learned']:.2f} with learned positions and {spread['rotary']:.0e} with rotary positions.",
        [
            Table("score by position", ("position", *SCHEMES),
                  [[i, *(scores[scheme][i] for scheme in SCHEMES)] for i in range(moves)]),
            Table("largest minus smallest", ("scheme", "spread"), [[scheme, spread[scheme]] for scheme in SCHEMES]),
        ],
        draw,
    )  # fmt: skip
