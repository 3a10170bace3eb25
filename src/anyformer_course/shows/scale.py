"""Why sqrt(dk): products of longer vectors are larger, and softmax of large scores has one weight near 1.

A random query is compared with 16 random keys of dk numbers, many times. With the division by sqrt(dk), the scores have
the same size for every dk.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from anyformer.look import figures
from anyformer.specs.field_types import Count
from anyformer.specs.messages import quote
from anyformer_course.shown import Shown, Table


def example(widths: str = "4 16 64 256", *, keys: Count = 16, samples: Count = 2000, seed: int = 0) -> Shown:
    """Measure scores, weights and gradients with and without 1 / sqrt(dk) for each dk in `widths`."""
    try:
        sizes = [int(each) for each in str(widths).split()]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1 or max(sizes) > 4096:
        raise ValueError(f"widths is {quote(widths)}; give whole numbers from 1 to 4096, such as '4 16 64'")
    rows, largest, slopes = [], {}, {}
    for K in sizes:
        draws = torch.Generator().manual_seed(seed)
        q = torch.randn(samples, 1, K, generator=draws)
        k = torch.randn(min(keys, 512), samples, K, generator=draws).transpose(0, 1)
        products = (q * k).sum(-1)  # (samples, keys)
        for divisor in (1.0, math.sqrt(K)):
            weights = (products / divisor).softmax(-1)
            slope = (weights * (1 - weights)).mean()  # derivative of a weight with respect to its own score
            largest[K, divisor == 1.0], slopes[K, divisor == 1.0] = float(weights.max(-1).values.mean()), float(slope)
        pairs = [(each[K, True], each[K, False]) for each in (largest, slopes)]
        rows.append([K, float(products.std()), *pairs[0], *pairs[1]])
    columns = ("dk", "deviation of q k", "largest weight", "largest weight, divided", "gradient", "gradient, divided")

    def draw() -> Any:
        figure, axes = figures.new(2, 1, 8, 3.2)
        for i, (title, unscaled, scaled) in enumerate((("largest weight", 2, 3), ("gradient of softmax", 4, 5))):
            axes[0, i].plot(sizes, [row[unscaled] for row in rows], "o-", label="q k")
            axes[0, i].plot(sizes, [row[scaled] for row in rows], "s-", label="q k / sqrt(dk)")
            axes[0, i].set(xscale="log", xlabel="dk", title=title, ylim=(0, None))
            axes[0, i].set_xticks(sizes, [str(size) for size in sizes])
            axes[0, i].legend(frameon=False)
        return figure

    K = sizes[-1]
    return Shown(
        f"Products of vectors of {K} numbers have a deviation of {rows[-1][1]:.1f} (sqrt(dk) is {math.sqrt(K):.1f}); "
        f"the largest of {keys} weights is {largest[K, True]:.2f} on average, and {largest[K, False]:.2f} after the "
        f"division. The gradient of a weight is {slopes[K, True]:.3f}, and {slopes[K, False]:.3f} after the division.",
        [Table(f"a query and {keys} keys, mean of {samples} draws", columns, rows)],
        draw,
    )
