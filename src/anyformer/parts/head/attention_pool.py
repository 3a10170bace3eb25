"""Attention pooling: a learned vector attends to the sequence [Lee et al. 2019; Zhai et al. 2022].

B batch, T tokens, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anyformer.parts.attention.set_transformer import Across, each_row
from anyformer.parts.base import PartModule
from anyformer.parts.feedforward.base import FeedForward
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.pooling import Pooling
from anyformer.parts.init import Kaiming
from anyformer.parts.norm import LayerNorm, Norm
from anyformer.runtime.context import Context
from anyformer.specs.field_types import QKVO, Chance, Count
from anyformer.specs.part import Site


class AttentionPool(Pooling, called=("attention pooling", "MAP head", "multihead attention pooling", "SigLIP pooling")):
    """A learned probe attends to all tokens that are not padding: h = attention(probe, x). The pooled vector is h +
    feedforward(norm(h)) (SigLIP's images). Unlike `SeedPool`, the probe is not added to h."""

    num_heads: Count
    feedforward: FeedForward | None = None
    norm: Norm | None = LayerNorm()  # before the feed-forward layer
    bias: QKVO = "qkvo"  # projections that have a bias
    dropout: Chance = 0.0  # on the attention weights

    def check(self) -> None:
        if isinstance(self.feedforward, MLP) and self.feedforward.out is not None:
            raise ValueError("AttentionPool.feedforward.out: the vector keeps its width; do not set it")


class AttentionPoolModule(PartModule, of=AttentionPool):
    def __init__(self, part: AttentionPool, site: Site) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.empty(1, site.width))
        self.starts = {"probe": Kaiming(gain=1.0, normal=False)}
        self.attention = Across(part, site.child("attention"))
        self.norm: nn.Module | None = None
        self.feedforward: nn.Module | None = None
        if part.feedforward is not None:
            self.norm = part.norm.build(site.child("norm")) if part.norm else None
            self.feedforward = part.feedforward.build(site.child("feedforward"))

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        h = self.attention(each_row(self.probe, x), ctx, x, ctx.tokens)
        if self.feedforward is not None:
            h = h + self.feedforward(h if self.norm is None else self.norm(h), ctx)
        return h[:, 0]
