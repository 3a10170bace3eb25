"""Position-wise feed-forward layers. F inner width, D width."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.few_rows import NormWeights
from anyformer.kernels.linear import cast_for_autocast
from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.base import PartModule
from anyformer.parts.decode_step import NAMES, DecodeStep, linear
from anyformer.parts.feedforward.base import FeedForward
from anyformer.parts.fused_linear import Joined, LinearThenGELU
from anyformer.parts.op import Reshaping
from anyformer.runtime.context import Context
from anyformer.specs.part import Site


class MLP(
    FeedForward,
    Reshaping,
    sees="itself",
    called=(
        "FFN",
        "feed-forward",
        "position-wise",
        "swish (activation='silu')",
        "SiLU (activation='silu')",
        "squared ReLU (activation='relu2')",
    ),
):
    """down(activation(up(x)))"""

    activation: Activation = "gelu"

    def inner(self, up: Tensor) -> Tensor:  # type: ignore[override]
        return ACTIVATIONS[self.activation](up)


class MLPModule(PartModule, of=MLP):
    def __init__(self, part: MLP, site: Site) -> None:
        super().__init__()
        self.up = nn.Linear(site.width, part.width, bias=part.bias)
        self.down = nn.Linear(part.width, part.out_width(site.width), bias=part.bias)
        self.part, self.activation, self.dropout = part, activation_of(part), part.dropout
        self.up_gelu: LinearThenGELU | None = None  # set by transforms/fuse.py: both as one operation, for training

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if self.up_gelu is not None and self.up_gelu.covers(self.up, x):
            inner = self.up_gelu(x)
        else:
            inner = self.part.inner(self.up(x))
        if self.dropout and self.training:
            inner = F.dropout(inner, self.dropout)
        return self.down(inner)


class GatedMLP(
    FeedForward,
    sees="itself",
    called=(
        "SwiGLU (activation='silu')",
        "GeGLU (activation='gelu')",
        "ReGLU (activation='relu')",
        "GLU (activation='sigmoid')",
        "LiGLU (activation='identity')",
    ),
):
    """down(activation(gate(x)) * up(x)): SwiGLU, GeGLU, ReGLU, GLU, LiGLU by the activation [Shazeer 2020]"""

    gated: ClassVar[bool] = True

    activation: Activation = "silu"
    bias: bool = False

    def inner(self, gate: Tensor, up: Tensor) -> Tensor:  # type: ignore[override]
        return ACTIVATIONS[self.activation](gate) * up

    def build(self, site: Site) -> nn.Module:
        return GatedMLPModule(self, site.width)


class GatedMLPModule(nn.Module):
    def __init__(self, part: FeedForward, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, part.width, bias=part.bias)
        self.up = nn.Linear(width, part.width, bias=part.bias)
        self.down = nn.Linear(part.width, width, bias=part.bias)
        self.gate_up: Joined | None = None  # set by transforms/fuse.py: both as one product
        self.part, self.activation, self.dropout = part, activation_of(part), part.dropout

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if self.gate_up is not None and self.gate_up.covers(self.gate, self.up):
            gate, up = self.gate_up(x)
        else:
            x = cast_for_autocast(x)
            gate, up = self.gate(x), self.up(x)
        inner = self.part.inner(gate, up)
        if self.dropout and self.training:
            inner = F.dropout(inner, self.dropout)
        return self.down(inner)


def activation_of(part: FeedForward) -> Callable[[Tensor], Tensor] | None:
    """Return the activation if `inner` is activation(up) or activation(gate) * up, which fused kernels compute."""
    if isinstance(part, (MLP, GatedMLP)) and type(part).inner in (MLP.inner, GatedMLP.inner):
        return ACTIVATIONS[part.activation]
    return None  # a different function, also in a subclass


# -- fused decoding steps ----------------------------------------------------------------------------------------------


class MLPStep(DecodeStep, of=MLPModule):
    layers: ClassVar[tuple[str, ...]] = ("up", "down")
    inputs: ClassVar[tuple[str, ...]] = ("up",)  # layers that read the input

    def obstacle(self, rows: int) -> str | None:
        return super().obstacle(rows) or self.unknown_activation()

    def __call__(self, x: Tensor, norm: NormWeights | None, shortcut: Tensor | None, ctx: Context) -> Tensor:
        layers, gated = [getattr(self.op, name) for name in self.inputs], len(self.inputs) > 1
        inner = linear(x, *layers, norm=norm, activation=NAMES[self.op.activation], gated=gated)
        return linear(inner, self.op.down, onto=shortcut)


class GatedMLPStep(MLPStep, of=GatedMLPModule):
    layers = ("gate", "up", "down")
    inputs = ("gate", "up")
