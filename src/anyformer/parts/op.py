"""Base classes of ops: attention, feed-forward, recurrence, convolution."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from anyformer.kernels.attention import Plan
from anyformer.parts.base import PartModule
from anyformer.parts.mask import Mask
from anyformer.runtime.context import Context
from anyformer.specs.field_types import Count
from anyformer.specs.part import Part, Site


class Op(Part, abstract=True):
    """A mixer or a feed-forward. Its module maps x (B, T, D) and the `Context` of the pass to (B, T, D)."""

    open_slot: ClassVar[bool] = True
    packs: ClassVar[bool] = True  # a row may contain several packed documents, which do not see each other
    reads_grid: ClassVar[bool] = False  # it uses the grid of the tokens, even if its mask does not

    @property
    def mask(self) -> Mask | None:
        """The mask that decides which keys each query sees; None: the op has no mask."""
        return None


class Reshaping(Op, abstract=True):
    """An op whose output can have a different width than its input, or a coarser grid. Its Sublayer then needs a `skip`
    that changes the stream in the same way."""

    out: Count | None = None  # output width; default: the input width

    @property
    def stride(self) -> tuple[int, ...]:
        """Stride along each side of the grid; empty or 1: the grid does not change."""
        return ()

    @property
    def reshapes(self) -> bool:
        return self.out is not None or math.prod(self.stride) > 1

    def out_width(self, width: int) -> int:
        return self.out or width


class InHeads(PartModule):
    """A mixer whose width is divided among heads."""

    hint: ClassVar[str] = ""  # end of the error message: how to fix it

    def __init__(self, site: Site, num_heads: int, head_width: int | None = None) -> None:
        super().__init__()
        if head_width is None and site.width % num_heads:
            raise ValueError(f"{site.address}: width {site.width} is not a multiple of {num_heads} heads{self.hint}")
        self.address, self.head_width = site.address, head_width or site.width // num_heads

    def heads(self, x: Tensor) -> Tensor:
        """(B, T, H K) -> (B, H, T, K)"""
        return x.view(*x.shape[:2], -1, self.head_width).transpose(1, 2)

    def attention_plan(
        self, ctx: Context, dropout: float, scale: float | None = None, bias: Tensor | None = None
    ) -> Plan:
        """Return the plan of softmax attention, with `dropout` in training; `scale` is 1 / sqrt(K) by default."""
        scale = self.head_width**-0.5 if scale is None else scale
        dropout = dropout if self.training else 0.0
        return Plan(scale, bias, dropout=dropout, on_weights=ctx.weights(self.address), kernel=ctx.kernel)
