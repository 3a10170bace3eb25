"""The Conformer's convolution module."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.convolution import depthwise
from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.base import PartModule
from anyformer.parts.norm import BatchNorm, Norm, RowNorm, RowNormModule
from anyformer.parts.op import Op
from anyformer.runtime.context import Context
from anyformer.runtime.taps import TapNames
from anyformer.specs.field_types import Count
from anyformer.specs.part import Sees, Site, farthest


class ConvolutionModule(Op, sees="all", called=("Conformer", "depthwise convolution")):
    """The Conformer's convolution: pointwise, gate, depthwise, norm, activation, pointwise [Gulati et al. 2020]."""

    kernel: Count = 31
    activation: Activation = "silu"
    norm: Norm | RowNorm = BatchNorm()
    bias: bool = False
    causal: bool = False  # use only past frames
    masked: bool = False  # zero padding before the depthwise convolution (always if causal); not as published

    def reaches(self) -> Sees | None:
        return farthest("past" if self.causal else "all", self.norm)

    @property
    def causal_alternative(self) -> str:
        return repr(self.replace(causal=True))


class ConvolutionModuleModule(PartModule, of=ConvolutionModule):
    tapped: ClassVar[TapNames] = {"taps": None}

    def __init__(self, part: ConvolutionModule, site: Site) -> None:
        super().__init__()
        width = site.width
        self.part, self.address = part, site.address
        self.gate = nn.Linear(width, 2 * width, bias=part.bias)
        self.taps = nn.Conv1d(width, width, part.kernel, groups=width, bias=part.bias)
        self.norm = part.norm.build(site.child("norm"))
        self.out = nn.Linear(width, width, bias=part.bias)
        self.activation = ACTIVATIONS[part.activation]
        # an even kernel (the paper's 32) reaches one frame further ahead than back
        self.padding = (part.kernel - 1, 0) if part.causal else ((part.kernel - 1) // 2, part.kernel // 2)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        x, real = F.glu(self.gate(x), dim=-1), ctx.tokens if self.part.masked or self.part.causal else None
        if real is not None:
            x = x.masked_fill(~real[..., None], 0)
        taps = depthwise(x, self.taps.weight, self.taps.bias, self.padding, ctx.documents)
        x = ctx.tap(self.address, "taps", taps)
        if isinstance(self.norm, RowNormModule):
            if ctx.documents is not None:
                raise ValueError(f"{self.address}.norm covers whole rows, so documents cannot be packed; use LayerNorm")
            x = self.norm(x, real)
        else:
            x = self.norm(x)
        return self.out(self.activation(x))
