"""What a residual step goes around."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from anyformer.part import Part


class Op(Part):
    """A mixer or a feed-forward: its module maps x (B, T, D) and the `Context` of the pass to (B, T, D)."""

    open_slot: ClassVar[bool] = True


class InHeads(nn.Module):
    """A mixer that divides its width among heads."""

    head_width: int

    def heads(self, x: Tensor) -> Tensor:
        """(B, T, H K) -> (B, H, T, K)"""
        return x.view(*x.shape[:2], -1, self.head_width).transpose(1, 2)
