"""Attention inside clusters of tokens, whose centres follow the tokens while a model learns [Roy et al. 2020].

B batch, T tokens, H heads, K head width, n clusters, w tokens of a cluster, D width.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.attention.lsh import BucketsModule
from anyformer.parts.init import Normal
from anyformer.parts.op import Op
from anyformer.runtime.context import Context
from anyformer.runtime.taps import MIXER, Listener, TapNames
from anyformer.specs.checks import at_least, chance
from anyformer.specs.part import Sees, Site


class RoutingAttention(Op, sees="past", called=("Routing Transformer", "k-means attention")):
    """Queries and keys, normed, are compared with the centres of `clusters`. Each cluster takes the `window` queries
    and the `window` keys that are nearest to it, and these see each other; a token that several took gets the mean of
    what it saw, and one that none took gets 0.

    Which tokens a cluster takes depends on all of them. So a `causal` one does otherwise: queries are keys, a token is
    of the cluster nearest to it, and sees itself and the `window` tokens before it there."""

    num_heads: int
    clusters: int = 16  # a head
    window: int = 64  # tokens that one sees in a cluster
    decay: float = 0.999  # what stays of a centre in a step of training; the rest is the mean of what is nearest to it
    causal: bool = False  # only earlier tokens are seen
    bias: bool = False  # of the projections
    dropout: float = 0.0  # on the attention weights

    def check(self) -> None:
        at_least(self, 1, "num_heads", "clusters", "window")
        chance(self, "dropout")
        if not 0 <= self.decay <= 1:
            raise ValueError(f"RoutingAttention.decay is {self.decay}; it must be in [0, 1]")

    def reaches(self) -> Sees | None:
        return "past" if self.causal else "all"

    @property
    def causal_alternative(self) -> str:
        return repr(self.replace(causal=True))

    def build(self, site: Site) -> nn.Module:
        return RoutingAttentionModule(self, site)


class RoutingAttentionModule(BucketsModule):
    starts: ClassVar[dict[str, Any]] = {"centres": Normal(std=1.0), "moves": 0.0}
    exact: ClassVar[tuple[str, ...]] = ("centres", "moves")  # fp32 whatever the model is
    hint: ClassVar[str] = ""
    centres: Tensor
    moves: Tensor

    def __init__(self, part: RoutingAttention, site: Site) -> None:
        super().__init__(site, part.num_heads)
        D, shape = site.width, (part.num_heads, part.clusters, self.head_width)
        self.part, self.chunk, self.buckets = part, part.window, part.clusters
        self.before, self.after, self.rounds, self.own_bucket = 1, 0, 1, True
        self.q, self.v, self.o = (nn.Linear(D, D, bias=part.bias) for _ in range(3))
        self.k = None if part.causal else nn.Linear(D, D, bias=part.bias)
        self.register_buffer("centres", torch.empty(shape))
        self.register_buffer("moves", torch.zeros(shape))  # what the last pass would change
        self.tapped: TapNames = {name: shown for name, shown in MIXER.items() if name != "k" or not part.causal}

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        q, v = (self.heads(ctx.tap(self.address, name, layer(x))) for name, layer in (("q", self.q), ("v", self.v)))
        q = k = F.layer_norm(q, (self.head_width,))
        if self.k is not None:
            k = F.layer_norm(self.heads(ctx.tap(self.address, "k", self.k(x))), (self.head_width,))
        learns = self.training and self.part.decay < 1
        if learns and not inside_backward():
            self.centres.add_(self.moves)
        like_q, like_k = self.like(q), self.like(k)  # (B, H, T, n)
        if learns:
            self.follow((q, like_q), (k, like_k), tokens=ctx.tokens)
        scale = self.head_width**-0.5
        if self.part.causal:
            out = self.look(q, k, v, like_q.argmax(-1, keepdim=True), scale, ctx)
        else:
            out = self.attend_routed(q, k, v, like_q, like_k, scale, ctx)
        return self.o(ctx.tap(self.address, "mixed", out.transpose(1, 2).flatten(2)))

    @torch.no_grad()
    def like(self, x: Tensor) -> Tensor:
        """(B, H, T, n) the cosine of each token with each centre, times its length."""
        wide = torch.promote_types(x.dtype, torch.float32)
        return torch.matmul(x.to(wide), F.normalize(self.centres.to(wide), dim=-1).transpose(-1, -2))

    @torch.no_grad()
    def follow(self, *found: tuple[Tensor, Tensor], tokens: Tensor | None) -> None:
        """How far each centre would move towards the mean of what is nearest to it. It moves when the next pass begins:
        a layer that is run again in the backward pass finds it where it was."""
        total, count = torch.zeros_like(self.moves), torch.zeros_like(self.moves[..., :1])
        for x, like in found:
            nearest = F.one_hot(like.argmax(-1), self.part.clusters).to(total.dtype)  # (B, H, T, n)
            nearest = nearest if tokens is None else nearest * tokens[:, None, :, None]
            total = total + torch.einsum("bhtn,bhtk->hnk", nearest, x.to(total.dtype))
            count = count + nearest.sum((0, 2))[..., None]
        mean = torch.where(count > 0, total / count.clamp(min=1), self.centres)
        self.moves.copy_((1 - self.part.decay) * (mean - self.centres))

    def attend_routed(
        self, q: Tensor, k: Tensor, v: Tensor, like_q: Tensor, like_k: Tensor, scale: float, ctx: Context
    ) -> Tensor:
        """(B, H, T, K)"""
        if ctx.state is not None:
            raise ValueError(f"{self.address}: clusters choose from a whole text: it cannot be decoded step by step")
        if ctx.documents is not None:
            raise ValueError(f"{self.address}: clusters choose from a row, which holds one text: nothing can be packed")
        (B, H, T, K), real = q.shape, ctx.tokens
        if real is not None:
            like_q, like_k = (t.masked_fill(~real[:, None, :, None], float("-inf")) for t in (like_q, like_k))
        # of equal ones the first, wherever pads stand
        order = (t.sort(dim=2, descending=True, stable=True).indices for t in (like_q, like_k))
        mine, theirs = (t[:, :, : self.part.window].transpose(2, 3) for t in order)
        n, w = mine.shape[2:]

        def gather(x: Tensor, places: Tensor) -> Tensor:  # (B, H, n, w, K)
            return x.gather(2, places.flatten(2)[..., None].expand(-1, -1, -1, K)).unflatten(2, (n, w))

        wide = torch.promote_types(q.dtype, torch.float32)
        scores = torch.matmul(gather(q, mine).to(wide), gather(k, theirs).to(wide).transpose(-1, -2)) * scale
        taken = torch.ones_like(mine, dtype=wide)
        if real is not None:
            row = real[:, None, None].expand(-1, H, n, -1)
            taken = row.gather(3, mine).to(wide)
            scores = scores.masked_fill(~row.gather(3, theirs)[..., None, :], torch.finfo(wide).min)
        count = taken.new_zeros(B, H, T).scatter_add(2, mine.flatten(2), taken.flatten(2))
        share = taken / count.gather(2, mine.flatten(2)).clamp(min=1).view_as(mine)  # of a cluster, in what one sees
        weights = (scores.softmax(-1) * share[..., None]).to(v.dtype)
        listen = ctx.watch(self.address)
        if listen is not None or ctx.kernel == "eager":
            whole = self.dense_weights(weights, mine, theirs, T, listen)
            if ctx.kernel == "eager" or (listen is not None and listen.changed):
                return torch.matmul(F.dropout(whole, self.dropout), v)
        mixed = torch.matmul(F.dropout(weights, self.dropout), gather(v, theirs)).flatten(2, 3)
        return torch.zeros_like(v).scatter_add(2, mine.flatten(2)[..., None].expand_as(mixed), mixed)

    def dense_weights(
        self, weights: Tensor, mine: Tensor, theirs: Tensor, count: int, listen: Listener | None
    ) -> Tensor:
        """(B, H, T, T) the weights of all clusters together."""
        pair = (mine[..., None] * count + theirs[..., None, :]).flatten(2)
        found = weights.new_zeros(*weights.shape[:2], count * count).scatter_add(2, pair, weights.flatten(2))
        found = found.unflatten(2, (count, count))
        return found if listen is None else listen(found)


def inside_backward() -> bool:
    """Whether this pass is one that a backward pass runs again."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
