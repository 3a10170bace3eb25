"""What a residual step goes around."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor, nn

from anyformer.runtime.mask import Mask
from anyformer.specs.part import Part, Site


class Op(Part):
    """A mixer or a feed-forward: its module maps x (B, T, D) and the `Context` of the pass to (B, T, D)."""

    open_slot: ClassVar[bool] = True
    packs: ClassVar[bool] = True  # rows may hold several documents that do not see each other
    reads_grid: ClassVar[bool] = False  # looks over a grid whatever its tokens may see of each other

    @property
    def mask(self) -> Mask | None:
        """Which keys each query may see, if a mask decides it."""
        return None


class Reshaping(Op):
    """An op whose result can be wider, or on a coarser grid, than what it reads. It then stands in a Sublayer with a
    `skip`, which makes the same of the stream."""

    out: int | None = None  # the width that leaves, where it is another

    @property
    def stride(self) -> tuple[int, ...]:
        """One in how many tokens is left along each side of the grid."""
        return ()

    @property
    def reshapes(self) -> bool:
        return self.out is not None or math.prod(self.stride) > 1

    def out_width(self, width: int) -> int:
        return self.out or width


class InHeads(nn.Module):
    """A mixer that divides its width among heads."""

    otherwise: ClassVar[str] = ""  # what can be done where it cannot

    def __init__(self, site: Site, num_heads: int, head_width: int | None = None) -> None:
        super().__init__()
        if head_width is None and site.width % num_heads:
            found = f"width {site.width} is not a multiple of {num_heads} heads"
            raise ValueError(f"{site.address}: {found}{self.otherwise}")
        self.address, self.head_width = site.address, head_width or site.width // num_heads

    def heads(self, x: Tensor) -> Tensor:
        """(B, T, H K) -> (B, H, T, K)"""
        return x.view(*x.shape[:2], -1, self.head_width).transpose(1, 2)
