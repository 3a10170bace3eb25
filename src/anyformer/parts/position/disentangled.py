"""Disentangled attention: what a token is and where it stands are compared apart [He et al. 2021].

B batch, T queries, S keys, H heads, K head width, R distances told apart, W width of their vectors.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.norm import Norm
from anyformer.parts.position.bias import AttentionPositionModule, HeadwisePosition, Projections, distance_in
from anyformer.parts.unused import mark_unused
from anyformer.runtime.context import Context
from anyformer.specs.checks import at_least, chance
from anyformer.specs.messages import quote
from anyformer.specs.part import LayerSharing, Site


class Disentangled(HeadwisePosition, sees="itself", called=("DeBERTa", "disentangled attention")):
    """To the scores q_i k_j are added q_i K_r and k_j Q_r: keys and queries made of a learned vector for the distance
    r = i - j [He et al. 2021]. All layers read the vectors that the first holds. The attention's `scale` is published
    as 1 / sqrt(terms K), with as many terms as are added up."""

    reach: int = 512  # distances beyond it share the last vector; 0: there are no vectors
    buckets: int | None = None  # so many vectors each way: far distances share theirs, more of them the farther
    by_query: bool = True  # q_i K_r, "content to position"
    by_key: bool = True  # k_j Q_r, "position to content"
    own: bool = True  # projections of its own; otherwise the attention's make keys and queries of the vectors too
    bias: str = "qk"  # which of its own projections have one
    width: int | None = None  # of the vectors; default: that of all heads together
    norm: Norm | None = None  # of the vectors
    dropout: float = 0.0  # on the vectors
    shared: bool = True  # otherwise each layer has vectors of its own

    def check(self) -> None:
        at_least(self, 1, "num_heads", "width")
        at_least(self, 0, "reach")
        at_least(self, 2, "buckets")
        chance(self, "dropout")
        if set(self.bias) - set("qk"):
            raise ValueError(f"Disentangled.bias names projections among 'qk', got {quote(self.bias)}")

    @property
    def layer_sharing(self) -> LayerSharing | None:
        form = (self.each_way, self.width or f"{self.num_heads} heads", self.reads)
        return LayerSharing("shared=False", ("layer_drop", "order"), form) if self.shared else None

    @property
    def each_way(self) -> int:
        """R / 2, how many vectors there are for keys before a query, and for those after it."""
        return self.buckets or self.reach if self.reach else 0

    @property
    def reads(self) -> bool:
        return self.each_way > 0 and (self.by_query or self.by_key)

    def build(self, site: Site) -> nn.Module:
        return DisentangledModule(self, site)


class DisentangledModule(AttentionPositionModule):
    def __init__(self, part: Disentangled, site: Site) -> None:
        super().__init__()
        H, K = part.num_heads, site.width
        W = part.width or H * K
        self.part, self.address, self.head_width = part, site.address, K
        self.needs_width = None if part.own or not part.reads else W  # of what the attention projects
        self.step = re.sub(r".*\blayers\.\d+\.", "distances of ", site.address)  # its like in the first layer
        self.table: nn.Embedding | None = None
        self.norm: nn.Module | None = None
        if not part.shared or site.layer == 0:
            self.table = nn.Embedding(2 * part.each_way, W) if part.each_way else None
            self.norm = part.norm.build(site.child("norm", width=W)) if part.norm else None
        own = part.own and part.each_way > 0
        self.q = nn.Linear(W, H * K, bias="q" in part.bias) if own and part.by_key else None
        self.k = nn.Linear(W, H * K, bias="k" in part.bias) if own and part.by_query else None
        if not part.reads:
            mark_unused(self)

    def vectors(self, ctx: Context) -> Tensor:
        """(R, W) of the distances, from the farthest key after a query to the farthest before it."""
        if self.table is not None:
            found = self.table(torch.arange(2 * self.part.each_way, device=self.table.weight.device))
            found = found if self.norm is None else self.norm(found)
            if self.part.shared:
                ctx.shared["distances"] = ctx.shared[self.step] = found
        else:
            found = ctx.shared.get(self.step, ctx.shared.get("distances"))
        if found is None:
            raise ValueError(f"{self.address}: distances for all layers are held by the first, which has none")
        return F.dropout(found, self.part.dropout) if self.training and self.part.dropout else found

    def bucket(self, apart: Tensor) -> Tensor:
        """Half of the buckets of a direction hold one distance each, in the rest distances grow logarithmically."""
        part = self.part
        assert part.buckets is not None
        exact, far = part.buckets // 2, apart.abs()
        growth = torch.log(torch.tensor((part.reach - 1) / exact))  # rounded as the logarithms that it divides
        grown = torch.ceil(torch.log(far.clamp(min=exact) / exact) / growth * (exact - 1)) + exact
        return torch.where(far <= exact, apart, (grown * apart.sign()).long())

    def entries(self, ctx: Context, places: Tensor, most: int) -> Tensor:
        """(1 or B, T, S) which of `most` vectors each way is that of each query and key, for all layers."""
        part = self.part

        def make() -> Tensor:
            apart = -distance_in(ctx, places)
            apart = apart if part.buckets is None else self.bucket(apart)
            return (apart + most).clamp(0, 2 * most - 1)

        return ctx.once_for(places, f"disentangled {part.reach} {part.buckets}", make)

    def key_bias(
        self, q: Tensor, k: Tensor, places: Tensor, scale: float, ctx: Context, projections: Projections
    ) -> tuple[Tensor, Tensor | None]:
        part, every = self.part, self.part.each_way
        if not part.reads:
            return q, None
        # a text shorter than the distances reach meets few of them
        whole = ctx.state is not None or ctx.key_states is not None
        near = part.buckets is None or places.shape[-1] <= part.buckets // 2
        most = min(every, places.shape[-1]) if near and not whole else every
        table = self.vectors(ctx)[every - most : every + most].to(q.dtype)
        entries = self.entries(ctx, places, most)[:, None]  # (1 or B, 1, T, S)
        (B, H), found = q.shape[:2], []
        if part.by_query:
            of_query = torch.matmul(q * scale, self.by_head(self.k or projections[1], table, H).transpose(1, 2))
            found.append(of_query.gather(3, entries.expand(B, H, -1, -1)))
        if part.by_key:
            queries = self.by_head(self.q or projections[0], table, H)
            k = k if k.shape[1] == H else k.repeat_interleave(H // k.shape[1], dim=1)
            of_key = torch.matmul(k, (queries * scale).transpose(1, 2))  # (B, H, S, R)
            found.append(of_key.gather(3, entries.transpose(2, 3).expand(B, H, -1, -1)).transpose(2, 3).contiguous())
        return q, found[0] if len(found) == 1 else found[0] + found[1]

    def by_head(self, project: Callable[[Tensor], Tensor], table: Tensor, heads: int) -> Tensor:
        """(R, W) -> (H, R, K); key heads may be fewer, each for several queries."""
        found = project(table).unflatten(-1, (-1, self.head_width)).transpose(0, 1)
        return found if found.shape[0] == heads else found.repeat_interleave(heads // found.shape[0], dim=0)
