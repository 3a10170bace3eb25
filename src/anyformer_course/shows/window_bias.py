"""Swin's relative position bias: one learned number per offset, looked up for every pair of patches in a window.

A window of M x M patches has M^4 pairs, but only (2 M - 1)^2 different offsets [Liu et al. 2021].
"""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer.look.figures import new
from anyformer.specs.field_types import Count
from anyformer_course.shown import Shown, Table


def example(size: int = 4, *, heads: Count = 3, move: int = 1, seed: int = 0) -> Shown:
    """Look up B for a window of `size` x `size` patches. `move` moves two patches together, to compare their bias."""
    if not 2 <= size <= 12 or not 0 <= move < size - 1:
        raise ValueError(f"size must be from 2 to 12, and move from 0 to {max(size - 2, 0)}")
    table = torch.randn((2 * size - 1) ** 2, heads, generator=torch.Generator().manual_seed(seed))
    place = torch.cartesian_prod(torch.arange(size), torch.arange(size))  # (M^2, 2)
    offset = place[:, None] - place[None] + size - 1  # from 0 to 2 M - 2
    bias = table[offset[..., 0] * (2 * size - 1) + offset[..., 1]]  # (M^2, M^2, H)
    pairs = {
        "the corner and its right neighbour": (0, 1),
        "the same two patches, moved": ((size + 1) * move, (size + 1) * move + 1),
        "the corner and the patch below": (0, size),
    }
    rows = [[name, a, b, *bias[a, b].tolist()] for name, (a, b) in pairs.items()]
    numbers = {m: ((2 * m - 1) ** 2, m**4) for m in dict.fromkeys((size, 7, 12))}
    spec = af.count(af.spec("swin-tiny"))
    learned = sum(count for address, count in spec.parts.items() if address.endswith("position.weight"))

    def draw() -> Any:
        figure, axes = new(3, 1, 11, 3.4)
        grid = table[:, 0].view(2 * size - 1, -1)
        axes[0, 0].imshow(grid.numpy(), cmap="RdBu")
        axes[0, 0].set_title(f"table of head 0: {2 * size - 1} x {2 * size - 1} offsets", fontsize=9)
        axes[0, 1].imshow(bias[..., 0].numpy(), cmap="RdBu", interpolation="nearest")
        axes[0, 1].set_title(f"B: {size**2} x {size**2} pairs", fontsize=9)
        middle = (size // 2) * size + size // 2
        axes[0, 2].imshow(bias[middle, :, 0].view(size, size).numpy(), cmap="RdBu")
        axes[0, 2].set_title("B of the patch in the middle, in its window", fontsize=9)
        for axis in axes[0]:
            axis.locator_params(integer=True)
        return figure

    return Shown(
        f"B has {size**4:,} numbers per head, but only {(2 * size - 1) ** 2} different ones. Swin-T learns {learned:,} "
        f"numbers for all positions; a ViT-B/16 learns {197 * 768:,}.",
        [
            Table("the same offset, the same bias",
                  ("pair", "patch", "attends to", *(f"head {h}" for h in range(heads))), rows),
            Table("by window", ("side M", "learned per head: (2 M - 1)^2", "pairs: M^4"),
                  [[m, *each] for m, each in numbers.items()]),
        ],
        draw,
    )  # fmt: skip
