"""Low rank of attention: singular values of the attention weights of a text, and the error of a lower rank.

Each character is a token: a random vector plus sinusoids. One head has random projections. The control has the same
weights, shuffled in each row: they are as sharp, but rows have no common structure.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table
from anyformer_course.words import vectors

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom"
LIMIT = 128  # characters


def example(text: str = TEXT, *, width: int = 16, scale: float = 1.0, seed: int = 0) -> Shown:
    """Approximate the attention weights by matrices of lower rank. `scale` multiplies the scores: sharper weights."""
    from anyformer.parts.position.absolute import sinusoids

    if not 8 <= len(text) <= LIMIT:
        raise ValueError(f"the text has {len(text)} characters; this example needs 8 to {LIMIT}")
    letters = {letter: vectors(letter if letter.strip() else "space", width, seed)[1][0] for letter in set(text)}
    x = torch.stack([letters[letter] for letter in text]) + sinusoids(len(text), width, 10000.0, True)
    draws = torch.Generator().manual_seed(seed)
    q, k, v = (x @ torch.randn(width, width, generator=draws) / math.sqrt(width) for _ in range(3))
    scores = q @ k.T / math.sqrt(width)
    weights = (scale * scores).softmax(-1)
    order = torch.rand(weights.shape, generator=draws).argsort(-1)
    shuffled = weights.gather(-1, order)
    full = len(text)
    ranks = sorted({1, *(round(full / parts) for parts in (16, 8, 4, 2)), full})
    rows = []
    for rank in ranks:
        errors = [float((lower_rank(a, rank) @ v - a @ v).norm() / (a @ v).norm()) for a in (weights, shuffled)]
        rows.append([rank, share(weights, rank), errors[0], share(shuffled, rank), errors[1]])
    quarter = round(full / 4)

    def draw() -> Any:
        figure, axes = new(3, 1, 13, 3.8)
        axes[0, 0].imshow(weights, interpolation="nearest")
        axes[0, 0].set_title("attention weights", fontsize=9)
        axes[0, 1].imshow(lower_rank(weights, quarter), interpolation="nearest")
        axes[0, 1].set_title(f"the same with rank {quarter} of {full}", fontsize=9)
        for name, each in (("attention", weights), ("shuffled rows", shuffled)):
            axes[0, 2].plot([0, *(share(each, rank) for rank in range(1, full + 1))], label=name)
        axes[0, 2].axvline(quarter, color="gray", linestyle=":")
        axes[0, 2].set(title="share of the singular values", xlabel="rank", ylim=(0, 1.02))
        axes[0, 2].legend()
        return figure

    return Shown(
        f"A quarter of the singular values ({quarter} of {full}) has {share(weights, quarter):.1%} of their sum; "
        f"with shuffled rows {share(shuffled, quarter):.1%}. The scores have rank {torch.linalg.matrix_rank(scores)}.",
        [Table(f"{full} characters", ("rank", "share, attention", "error of the result", "share, shuffled",
                                        "error, shuffled"), rows)],
        draw,
    )  # fmt: skip


def share(matrix: Tensor, rank: int) -> float:
    """Return the sum of the `rank` largest singular values, relative to the sum of all."""
    values = torch.linalg.svdvals(matrix)
    return float(values[:rank].sum() / values.sum())


def lower_rank(matrix: Tensor, rank: int) -> Tensor:
    """Return the nearest matrix of this rank."""
    u, s, vh = torch.linalg.svd(matrix)
    return u[:, :rank] * s[:rank] @ vh[:rank]
