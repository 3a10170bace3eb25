"""Attention through a few learned vectors, in linear time: the Set Transformer's inducing points and seeds [Lee et al.
2019], and Luna's packed sequence, which layers hand on [Ma et al. 2021].

B batch, T tokens, m learned vectors, H heads, K head width, D width.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyformer.parts.attention.attention import Attention, AttentionModule
from anyformer.parts.attention.linear import Projections
from anyformer.parts.feedforward.mlp import MLP, GatedMLP
from anyformer.parts.init import Normal
from anyformer.parts.norm import LayerNorm, Norm
from anyformer.runtime.context import Context, Memory
from anyformer.runtime.taps import MIXER, TapNames
from anyformer.specs.checks import at_least, chance
from anyformer.specs.messages import quote
from anyformer.specs.part import LayerSharing, Part, Site


class Across(AttentionModule):
    """Attention from vectors (B, N, D) to others (B, S, W), some of which may be padding. It keeps no state."""

    def __init__(self, part: Any, site: Site, shown: str | None = None, **widths: int | None) -> None:
        same: dict[str, Any] = {"num_heads": part.num_heads, "bias": part.bias, "dropout": part.dropout, **widths}
        super().__init__(Attention(memory=True, **same), site)
        self.tapped = {**MIXER, "weights": shown}

    def state_spec(self) -> None:  # type: ignore[override]
        return None

    def forward(  # type: ignore[override]
        self, x: Tensor, ctx: Context, others: Tensor, real: Tensor | None = None
    ) -> Tensor:
        index = torch.arange(x.shape[1], device=x.device)
        memory = Memory(others, real)
        return super().forward(x, ctx.replace(index=index, documents=None, memory=memory, state=None, shared={}))


def each_row(vectors: Tensor, x: Tensor) -> Tensor:
    """(m, D) -> (B, m, D), for as many rows as x has. A sum: without gradients a view of a parameter still asks for
    them, and torch's counter of FLOPs fails on it."""
    return vectors.to(x.dtype) + x.new_zeros(x.shape[0], 1, 1)


ONE_TEXT = "a few vectors see a whole row, which holds one text: nothing can be packed"
LATER = "a few vectors see the whole text: it cannot be decoded step by step"


# -- the Set Transformer -----------------------------------------------------------------------------------------------


class Seeds(Part, sees="itself", called=("PMA", "pooling by multi-head attention", "attention pooling")):
    """`count` learned vectors that look at all tokens: h = norm(s + attention(s, before(x))), and norm(h +
    feedforward(h)) where there is one [Lee et al. 2019]. The order of the tokens does not matter. What they saw is no
    token's result: whoever shows it to tokens says that these see all."""

    num_heads: int
    count: int = 1
    before: MLP | GatedMLP | None = None  # of each token
    feedforward: MLP | GatedMLP | None = None
    norm: Norm | None = LayerNorm()
    bias: str = "qkvo"  # which projections have one
    dropout: float = 0.0  # on the attention weights

    def check(self) -> None:
        at_least(self, 1, "num_heads", "count")
        chance(self, "dropout")
        if set(self.bias) - set("qkvo"):
            raise ValueError(f"Seeds.bias names projections among 'qkvo', got {quote(self.bias)}")
        for name in ("before", "feedforward"):
            if getattr(getattr(self, name), "out", None) is not None:
                raise ValueError(f"Seeds.{name}.out: the vectors keep their width; leave it out")

    def build(self, site: Site) -> nn.Module:
        return SeedsModule(self, site)


class SeedsModule(nn.Module):
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
            raise ValueError(f"{self.address}: {ONE_TEXT}")
        seeds = each_row(self.vectors, x)
        h = seeds + self.attention(seeds, ctx, x if self.before is None else self.before(x, ctx), ctx.tokens)
        h = h if self.norm is None else self.norm(h)
        if self.feedforward is not None:
            h = h + self.feedforward(h, ctx)
            h = h if self.out_norm is None else self.out_norm(h)
        return ctx.tap(self.address, "seen", h)


class InducedAttention(Projections, sees="all", called=("ISAB", "Set Transformer", "inducing points")):
    """Inducing points look at the tokens, and the tokens at what they saw: attention(x, points(x)) [Lee et al. 2019].
    Tokens in another order give the same results in that order."""

    points: Seeds
    dropout: float = 0.0  # on the attention weights of the tokens
    packs: ClassVar[bool] = False

    def check(self) -> None:
        super().check()
        chance(self, "dropout")

    @property
    def causal_alternative(self) -> str:
        return f"LinearAttention(num_heads={self.num_heads}, mask=Causal())"

    def build(self, site: Site) -> nn.Module:
        return InducedAttentionModule(self, site)


class InducedAttentionModule(nn.Module):
    def __init__(self, part: InducedAttention, site: Site) -> None:
        super().__init__()
        self.address, self.points = site.address, part.points.build(site.child("points"))
        self.attention = Across(part, site.child("attention"), "attentions")

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.state is not None:
            raise ValueError(f"{self.address}: {LATER}")
        return self.attention(x, ctx, self.points(x, ctx))


# -- Luna --------------------------------------------------------------------------------------------------------------


class LunaAttention(Projections, sees="all", called=("Luna", "linear unified nested attention", "pack and unpack")):
    """y = pack(p, x), out = unpack(x, y): p learned tokens look at the text, and the text at what they saw [Ma et al.
    2021]. p + y, normed, is the p of the next layer, so that only the first holds learned tokens."""

    tokens: int  # p
    handed_on: bool = True  # otherwise each layer has its own
    norm: Norm | None = LayerNorm()  # of what was handed on
    dropout: float = 0.0  # on the weights of both attentions
    packs: ClassVar[bool] = False

    def check(self) -> None:
        super().check()
        at_least(self, 1, "tokens")
        chance(self, "dropout")

    @property
    def layer_sharing(self) -> LayerSharing | None:
        return LayerSharing("handed_on=False", ("layer_drop", "order")) if self.handed_on else None

    @property
    def causal_alternative(self) -> str:
        return f"LinearAttention(num_heads={self.num_heads}, mask=Causal())"

    def build(self, site: Site) -> nn.Module:
        return LunaModule(self, site)


class LunaModule(nn.Module):
    tapped: ClassVar[TapNames] = {"packed": None}

    def __init__(self, part: LunaAttention, site: Site) -> None:
        super().__init__()
        self.address, self.layer, self.handed_on = site.address, site.layer, part.handed_on
        self.step = re.sub(r".*\blayers\.\d+\.", "", site.address)  # its like in the layers before
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
            raise ValueError(f"{self.address}: {ONE_TEXT if ctx.state is None else LATER}")
        p = self.previous_packed(ctx) if self.tokens is None else each_row(self.tokens, x)
        y = ctx.tap(self.address, "packed", self.pack(p, ctx, x, ctx.tokens))
        if self.handed_on:
            ctx.shared.setdefault("packed", {})[self.layer, self.step] = p + y
        return self.unpack(x, ctx, y)

    def previous_packed(self, ctx: Context) -> Tensor:
        """What the last layer before this one handed on, at the same step where there is one. By the layer's number:
        one that is run again for its gradients finds what it found."""
        before = [(step, p) for (layer, step), p in ctx.shared.get("packed", {}).items() if layer < self.layer]
        if not before:
            raise ValueError(f"{self.address}: the first layer holds the tokens that are handed on, and has none")
        p = ([p for step, p in before if step == self.step] or [before[-1][1]])[-1]
        return p if self.norm is None else self.norm(p)
