"""Attention by hand: queries, keys, scores and weights of a few words.

Each word gets a vector of four numbers, the same for the same word. One head with random projections computes
softmax(q k^T / sqrt(K)) v.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from anyformer.look.figures import heat_maps
from anyformer_course.shown import Shown, Table
from anyformer_course.words import label_rows, vectors


def example(text: str = "the cat sat down", *, width: int = 4, scale: float | None = None, seed: int = 0) -> Shown:
    """Compute q, k, v, scores, weights and results of one head. `scale` replaces 1 / sqrt(K)."""
    words, x = vectors(text, width, seed)  # (T, D)
    draws = torch.Generator().manual_seed(seed)
    q, k, v = (x @ torch.randn(width, width, generator=draws) / math.sqrt(width) for _ in range(3))  # (T, K)
    scores = q @ k.T * (1 / math.sqrt(width) if scale is None else scale)  # (T, T)
    weights = scores.softmax(-1)
    mixed = weights @ v
    top = weights.max(-1)
    strongest = int(top.values.argmax())

    def draw() -> Any:
        return heat_maps([scores, weights], ["scores", "weights"], "attention by hand", words)

    return Shown(
        f"{words[strongest]!r} looks most at {words[int(top.indices[strongest])]!r}, with weight "
        f"{float(top.values[strongest]):.2f}; each row of weights sums to 1.",
        [
            Table(title, ("word", *(words if square else map(str, range(width)))), label_rows(words, matrix))
            for title, matrix, square in (
                ("q", q, False), ("k", k, False), ("v", v, False), ("scores", scores, True),
                ("weights", weights, True), ("result: weights times v", mixed, False),
            )
        ],
        draw,
    )  # fmt: skip
