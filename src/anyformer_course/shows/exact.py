"""Emergence by counting: the share of right tokens grows smoothly, the share of whole right answers appears suddenly.

If each of k tokens is right with probability p, the whole answer is right with p^k. The loss falls by a power law with
the size, as in scaling laws, and p = exp(-loss) [Wei et al. 2022; Schaeffer et al. 2023].
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table


def example(*, tokens: int = 10, exponent: float = 0.3, start: float = 1.5) -> Shown:
    """Compare one token with answers of `tokens` tokens; the loss of 1e7 parameters is `start`."""
    if tokens < 1 or exponent <= 0 or start <= 0:
        raise ValueError("tokens, exponent and start must be positive")
    sizes = [10**x for x in (7, 8, 9, 10, 11, 12)]
    rows = []
    for size in sizes:
        loss = start * (size / 1e7) ** -exponent
        p = math.exp(-loss)
        rows.append([f"{size:.0e}", loss, p, p**tokens, -tokens * math.log(p) / math.log(10)])
    growth = [after[3] - before[3] for before, after in itertools.pairwise(rows)]
    largest = max(range(len(growth)), key=growth.__getitem__)

    def draw() -> Any:
        figure, axes = new(2, 1, 10, 3.6)
        axes[0, 0].semilogx(sizes, [row[1] for row in rows], "o-")
        axes[0, 0].set(xlabel="parameters", ylabel="loss per token")
        axes[0, 1].semilogx(sizes, [row[2] for row in rows], "o-", label="one token")
        axes[0, 1].semilogx(sizes, [row[3] for row in rows], "o-", label=f"all {tokens} tokens")
        axes[0, 1].set(xlabel="parameters", ylabel="share that is right")
        axes[0, 1].legend()
        return figure

    return Shown(
        f"from {rows[0][0]} to {rows[2][0]} parameters the share of right tokens grows from {rows[0][2]:.2f} to "
        f"{rows[2][2]:.2f}, but whole answers of {tokens} tokens only to {rows[2][3]:.3f}; the largest jump, "
        f"{growth[largest]:.2f}, is from {rows[largest][0]} to {rows[largest + 1][0]}.",
        [Table("by size", ("parameters", "loss per token", "a token is right", f"all {tokens} tokens are right",
                           "-log10 of that"), rows)],
        draw,
    )  # fmt: skip
