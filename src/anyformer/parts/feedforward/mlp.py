"""Position-wise feed-forward layers. F inner width, D width."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.linear import cast_for_autocast
from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.base import PartModule
from anyformer.parts.fused_linear import Joined, LinearThenGELU
from anyformer.parts.op import Op, Reshaping
from anyformer.runtime.context import Context
from anyformer.specs.field_types import Chance, Count
from anyformer.specs.part import Site


class MLP(
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

    width: Count  # F, inner width
    activation: Activation = "gelu"
    bias: bool = True
    dropout: Chance = 0.0  # on the inner activations


class MLPModule(PartModule, of=MLP):
    def __init__(self, part: MLP, site: Site) -> None:
        super().__init__()
        self.up = nn.Linear(site.width, part.width, bias=part.bias)
        self.down = nn.Linear(part.width, part.out_width(site.width), bias=part.bias)
        self.activation, self.dropout = ACTIVATIONS[part.activation], part.dropout
        self.up_gelu: LinearThenGELU | None = None  # set by transforms/fuse.py: both as one operation, for training

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if self.up_gelu is not None and self.up_gelu.covers(self.up, x):
            inner = self.up_gelu(x)
        else:
            inner = self.activation(self.up(x))
        if self.dropout and self.training:
            inner = F.dropout(inner, self.dropout)
        return self.down(inner)


class GatedMLP(
    Op,
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

    width: Count  # F, inner width
    activation: Activation = "silu"
    bias: bool = False
    dropout: Chance = 0.0  # on the inner activations


class GatedMLPModule(PartModule, of=GatedMLP):
    def __init__(self, part: GatedMLP, site: Site) -> None:
        super().__init__()
        self.gate = nn.Linear(site.width, part.width, bias=part.bias)
        self.up = nn.Linear(site.width, part.width, bias=part.bias)
        self.down = nn.Linear(part.width, site.width, bias=part.bias)
        self.gate_up: Joined | None = None  # set by transforms/fuse.py: both as one product
        self.activation, self.dropout = ACTIVATIONS[part.activation], part.dropout

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if self.gate_up is not None and self.gate_up.covers(self.gate, self.up):
            gate, up = self.gate_up(x)
        else:
            x = cast_for_autocast(x)
            gate, up = self.gate(x), self.up(x)
        inner = self.activation(gate) * up
        if self.dropout and self.training:
            inner = F.dropout(inner, self.dropout)
        return self.down(inner)
