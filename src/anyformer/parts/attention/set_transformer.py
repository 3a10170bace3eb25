"""Attention through a few learned vectors, in linear time: the Set Transformer's inducing points and seeds [Lee et al.
2019], and Luna's packed sequence, which is passed from layer to layer [Ma et al. 2021].

B batch, T tokens, m learned vectors, H heads, K head width, D width.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyformer.parts.attention.attention import Attention, AttentionModule
from anyformer.parts.attention.linear import Projections
from anyformer.parts.base import PartModule
from anyformer.parts.feedforward.base import FeedForward
from anyformer.parts.init import Normal
from anyformer.parts.norm import LayerNorm, Norm
from anyformer.runtime.context import Context, Memory
from anyformer.runtime.taps import MIXER, TapNames
from anyformer.specs.field_types import QKVO, Chance, Count
from anyformer.specs.part import LayerSharing, Part, Site


class Across(AttentionModule):
    """Attention from vectors (B, N, D) to other vectors (B, S, W), which may include padding. It has no cache."""

    def __init__(self, part: Any, site: Site, output: str | None = None, **widths: int | None) -> None:
        same: dict[str, Any] = {"num_heads": part.num_heads, "bias": part.bias, "dropout": part.dropout, **widths}
        super().__init__(Attention(memory=True, **same), site)
        self.tapped = {**MIXER, "weights": output}

    def state_spec(self) -> None:  # type: ignore[override]
        return None

    def forward(  # type: ignore[override]
        self, x: Tensor, ctx: Context, others: Tensor, real: Tensor | None = None
    ) -> Tensor:
        index = torch.arange(x.shape[1], device=x.device)
        memory = Memory(others, real)
        return super().forward(x, ctx.replace(index=index, documents=None, memory=memory, state=None, shared={}))


def each_row(vectors: Tensor, x: Tensor) -> Tensor:
    """(m, D) -> (B, m, D), for the rows of x. This is a sum, not a view: a view of a parameter requires gradients even
    if they are disabled, and torch's FLOP counter fails on it."""
    return vectors.to(x.dtype) + x.new_zeros(x.shape[0], 1, 1)


NO_PACKING = "documents cannot be packed, because all tokens of a row are pooled"
NO_DECODING = "all tokens of the text are pooled, so it cannot decode step by step"


# -- the Set Transformer -----------------------------------------------------------------------------------------------


class Seeds(Part, sees="itself", called=("PMA", "pooling by multi-head attention", "attention pooling")):
    """`count` learned vectors that attend to all tokens: h = norm(s + attention(s, before(x))), then norm(h +
    feedforward(h)) if `feedforward` is set [Lee et al. 2019]. The order of the tokens does not matter. The results
    belong to no token; a Part that lets tokens read them must declare sees="all"."""

    num_heads: Count
    count: Count = 1
    before: FeedForward | None = None  # applied to each token first
    feedforward: FeedForward | None = None
    norm: Norm | None = LayerNorm()
    bias: QKVO = "qkvo"  # projections that have a bias
    dropout: Chance = 0.0  # on the attention weights

    def check(self) -> None:
        for name in ("before", "feedforward"):
            if getattr(getattr(self, name), "out", None) is not None:
                raise ValueError(f"Seeds.{name}.out: the vectors keep their width; do not set it")


class SeedsModule(PartModule, of=Seeds):
    tapped: ClassVar[TapNames] = {"seen": None}

    def __init__(self, part: Seeds, site: Site) -> None:
        super().__init__()
        self.address = site.address
        self.vectors = nn.Parameter(torch.empty(part.count, site.width))
        self.starts = {"vectors": Normal(std=site.width**-0.5)}
        self.before: nn.Module | None = part.before.build(site.child("before")) if part.before else None
        self.attention = Across(part, site.child("attention"))
        self.norm = part.norm.build(site.child("norm")) if part.norm else None
        self.feedforward: nn.Module | None = None
        self.out_norm: nn.Module | None = None
        if part.feedforward is not None:
            self.feedforward = part.feedforward.build(site.child("feedforward"))
            self.out_norm = part.norm.build(site.child("out_norm")) if part.norm else None

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, m, D)"""
        if ctx.documents is not None:
            raise ValueError(f"{self.address}: {NO_PACKING}")
        seeds = each_row(self.vectors, x)
        h = seeds + self.attention(seeds, ctx, x if self.before is None else self.before(x, ctx), ctx.tokens)
        h = h if self.norm is None else self.norm(h)
        if self.feedforward is not None:
            h = h + self.feedforward(h, ctx)
            h = h if self.out_norm is None else self.out_norm(h)
        return ctx.tap(self.address, "seen", h)


class InducedAttention(Projections, sees="all", called=("ISAB", "Set Transformer", "inducing points")):
    """Inducing points attend to the tokens, and the tokens attend to their results: attention(x, points(x)) [Lee et al.
    2019]. Permuting the tokens permutes the results in the same way."""

    points: Seeds
    dropout: Chance = 0.0  # on the attention weights of the tokens
    packs: ClassVar[bool] = False

    @property
    def causal_alternative(self) -> str:
        return f"LinearAttention(num_heads={self.num_heads}, mask=Causal())"


class InducedAttentionModule(PartModule, of=InducedAttention):
    def __init__(self, part: InducedAttention, site: Site) -> None:
        super().__init__()
        self.address, self.points = site.address, part.points.build(site.child("points"))
        self.attention = Across(part, site.child("attention"), "attentions")

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.state is not None:
            raise ValueError(f"{self.address}: {NO_DECODING}")
        return self.attention(x, ctx, self.points(x, ctx))


# -- Luna --------------------------------------------------------------------------------------------------------------


class LunaAttention(Projections, sees="all", called=("Luna", "linear unified nested attention", "pack and unpack")):
    """y = pack(p, x), out = unpack(x, y): learned tokens p attend to the text, and the text attends to their results y
    [Ma et al. 2021]. norm(p + y) is the p of the next layer, so that only the first layer has learned tokens."""

    tokens: Count  # number of learned tokens
    handed_on: bool = True  # pass them from layer to layer; otherwise each layer has its own
    norm: Norm | None = LayerNorm()  # norm of the tokens from the previous layer
    dropout: Chance = 0.0  # on the weights of both attentions
    packs: ClassVar[bool] = False

    @property
    def layer_sharing(self) -> LayerSharing | None:
        return LayerSharing("handed_on=False", ("layer_drop", "order")) if self.handed_on else None

    @property
    def causal_alternative(self) -> str:
        return f"LinearAttention(num_heads={self.num_heads}, mask=Causal())"


class LunaModule(PartModule, of=LunaAttention):
    tapped: ClassVar[TapNames] = {"packed": None}

    def __init__(self, part: LunaAttention, site: Site) -> None:
        super().__init__()
        self.address, self.layer, self.handed_on = site.address, site.layer, part.handed_on
        self.step = re.sub(r".*\blayers\.\d+\.", "", site.address)  # the same key in all layers
        self.pack, self.unpack = Across(part, site.child("pack")), Across(part, site.child("unpack"), "attentions")
        self.norm: nn.Module | None = None
        self.tokens: nn.Parameter | None = None
        if site.layer and part.handed_on:
            self.norm = part.norm.build(site.child("norm")) if part.norm else None
        else:
            self.tokens = nn.Parameter(torch.empty(part.tokens, site.width))
            self.starts = {"tokens": Normal(std=site.width**-0.5)}

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.state is not None or ctx.documents is not None:
            raise ValueError(f"{self.address}: {NO_PACKING if ctx.state is None else NO_DECODING}")
        p = self.previous_packed(ctx) if self.tokens is None else each_row(self.tokens, x)
        y = ctx.tap(self.address, "packed", self.pack(p, ctx, x, ctx.tokens))
        if self.handed_on:
            ctx.shared.setdefault("packed", {})[self.layer, self.step] = p + y
        return self.unpack(x, ctx, y)

    def previous_packed(self, ctx: Context) -> Tensor:
        """Return the tokens from the nearest layer before this one, from the same sublayer if it has them. They are
        found by the layer's number, so that a layer that is recomputed in the backward pass gets the same tokens."""
        before = [(step, p) for (layer, step), p in ctx.shared.get("packed", {}).items() if layer < self.layer]
        if not before:
            raise ValueError(f"{self.address}: handed_on=True needs a LunaAttention in the first layer")
        p = ([p for step, p in before if step == self.step] or [before[-1][1]])[-1]
        return p if self.norm is None else self.norm(p)
