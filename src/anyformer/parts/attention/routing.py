"""Attention within clusters of tokens, whose centres follow the tokens during training [Roy et al. 2020].

B batch, T tokens, H heads, K head width, n clusters, w tokens per cluster, D width.
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
from anyformer.specs.field_types import Chance, Count, Fraction
from anyformer.specs.part import Sees, Site


class RoutingAttention(Op, sees="past", called=("Routing Transformer", "k-means attention")):
    """Normalised queries and keys are compared with the centres of `clusters`. Each cluster selects the `window`
    nearest queries and the `window` nearest keys, and these attend to each other. A token that several clusters select
    gets the mean of their results, and a token that none selects gets 0.

    Which tokens a cluster selects depends on all tokens. Therefore `causal` works differently: queries are keys, and a
    token sees itself and the `window` tokens before it in its nearest cluster."""

    num_heads: Count
    clusters: Count = 16  # clusters per head
    window: Count = 64  # tokens that a token sees per cluster
    decay: Fraction = 0.999  # share of a centre that a training step keeps; the rest is the mean of its nearest tokens
    causal: bool = False  # see only earlier tokens
    bias: bool = False  # bias of the projections
    dropout: Chance = 0.0  # on the attention weights

    def reaches(self) -> Sees | None:
        return "past" if self.causal else "all"

    @property
    def causal_alternative(self) -> str:
        return repr(self.replace(causal=True))


class RoutingAttentionModule(BucketsModule, of=RoutingAttention):
    starts: ClassVar[dict[str, Any]] = {"centres": Normal(std=1.0), "moves": 0.0}
    exact: ClassVar[tuple[str, ...]] = ("centres", "moves")  # fp32, whatever the model's dtype
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
        self.register_buffer("moves", torch.zeros(shape))  # the change of the centres that the last pass computed
        self.tapped: TapNames = {name: output for name, output in MIXER.items() if name != "k" or not part.causal}

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        q, v = (self.heads(ctx.tap(self.address, name, layer(x))) for name, layer in (("q", self.q), ("v", self.v)))
        q = k = F.layer_norm(q, (self.head_width,))
        if self.k is not None:
            k = F.layer_norm(self.heads(ctx.tap(self.address, "k", self.k(x))), (self.head_width,))
        learns = self.training and self.part.decay < 1
        if learns and not inside_backward():
            self.centres.add_(self.moves)
        like_q, like_k = self.similarity(q), self.similarity(k)  # (B, H, T, n)
        if learns:
            self.follow((q, like_q), (k, like_k), tokens=ctx.tokens)
        scale = self.head_width**-0.5
        if self.part.causal:
            out = self.attend_in_buckets(q, k, v, like_q.argmax(-1, keepdim=True), scale, ctx)
        else:
            out = self.attend_routed(q, k, v, like_q, like_k, scale, ctx)
        return self.o(ctx.tap(self.address, "mixed", out.transpose(1, 2).flatten(2)))

    @torch.no_grad()
    def similarity(self, x: Tensor) -> Tensor:
        """(B, H, T, n) the cosine of each token and centre, times the length of the token."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        return torch.matmul(x.to(dtype), F.normalize(self.centres.to(dtype), dim=-1).transpose(-1, -2))

    @torch.no_grad()
    def follow(self, *vectors: tuple[Tensor, Tensor], tokens: Tensor | None) -> None:
        """Compute how far each centre moves towards the mean of its nearest tokens. It moves when the next pass begins,
        so that a layer that is run again in the backward pass gets the same centres."""
        total, count = torch.zeros_like(self.moves), torch.zeros_like(self.moves[..., :1])
        for x, like in vectors:
            nearest = F.one_hot(like.argmax(-1), self.part.clusters).to(total.dtype)  # (B, H, T, n)
            nearest = nearest if tokens is None else nearest * tokens[:, None, :, None]
            total = total + torch.einsum("bhtn,bhtk->hnk", nearest, x.to(total.dtype))
            count = count + nearest.sum((0, 2))[..., None]
        mean = torch.where(count > 0, total / count.clamp(min=1), self.centres)
        self.moves.copy_((1 - self.part.decay) * (mean - self.centres))

    def attend_routed(
        self, q: Tensor, k: Tensor, v: Tensor, like_q: Tensor, like_k: Tensor, scale: float, ctx: Context
    ) -> Tensor:
        """Attend within the clusters -> (B, H, T, K)."""
        if ctx.state is not None:
            raise ValueError(f"{self.address}: clusters select from the whole text, so it cannot decode step by step")
        if ctx.documents is not None:
            raise ValueError(f"{self.address}: documents cannot be packed, because clusters select from a whole row")
        (B, H, T, K), real = q.shape, ctx.tokens
        if real is not None:
            like_q, like_k = (t.masked_fill(~real[:, None, :, None], float("-inf")) for t in (like_q, like_k))
        # stable: of equally near tokens, the first is selected, wherever pads are
        order = (t.sort(dim=2, descending=True, stable=True).indices for t in (like_q, like_k))
        queries, keys = (t[:, :, : self.part.window].transpose(2, 3) for t in order)
        n, w = queries.shape[2:]

        def gather(x: Tensor, places: Tensor) -> Tensor:  # (B, H, n, w, K)
            return x.gather(2, places.flatten(2)[..., None].expand(-1, -1, -1, K)).unflatten(2, (n, w))

        dtype = torch.promote_types(q.dtype, torch.float32)
        scores = torch.matmul(gather(q, queries).to(dtype), gather(k, keys).to(dtype).transpose(-1, -2)) * scale
        selected = torch.ones_like(queries, dtype=dtype)
        if real is not None:
            row = real[:, None, None].expand(-1, H, n, -1)
            selected = row.gather(3, queries).to(dtype)
            scores = scores.masked_fill(~row.gather(3, keys)[..., None, :], torch.finfo(scores.dtype).min)
        count = selected.new_zeros(B, H, T).scatter_add(2, queries.flatten(2), selected.flatten(2))
        share = selected / count.gather(2, queries.flatten(2)).clamp(min=1).view_as(queries)  # weight of a cluster
        weights = (scores.softmax(-1) * share[..., None]).to(v.dtype)
        listen = ctx.watch(self.address)
        if listen is not None or ctx.kernel == "eager":
            dense = self.dense_weights(weights, queries, keys, T, listen)
            if ctx.kernel == "eager" or (listen is not None and listen.changed):
                return torch.matmul(F.dropout(dense, self.dropout), v)
        mixed = torch.matmul(F.dropout(weights, self.dropout), gather(v, keys)).flatten(2, 3)
        return torch.zeros_like(v).scatter_add(2, queries.flatten(2)[..., None].expand_as(mixed), mixed)

    def dense_weights(
        self, weights: Tensor, queries: Tensor, keys: Tensor, count: int, listen: Listener | None
    ) -> Tensor:
        """(B, H, T, T) the sum of the weights of all clusters."""
        pair = (queries[..., None] * count + keys[..., None, :]).flatten(2)
        dense = weights.new_zeros(*weights.shape[:2], count * count).scatter_add(2, pair, weights.flatten(2))
        dense = dense.unflatten(2, (count, count))
        return dense if listen is None else listen(dense)


def inside_backward() -> bool:
    """Whether this pass recomputes activations inside a backward pass."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
