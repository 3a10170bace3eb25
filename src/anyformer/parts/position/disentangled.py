"""Disentangled attention: contents and positions are compared separately [He et al. 2021].

B batch, T queries, S keys, H heads, K head width, R distances, W width of their vectors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.norm import Norm
from anyformer.parts.position.bias import AttentionPositionModule, HeadwisePosition, Projections, distance_in
from anyformer.parts.unused import mark_unused
from anyformer.runtime.context import Context
from anyformer.specs.field_types import Chance, Count, Letters, Natural, TwoOrMore
from anyformer.specs.part import LayerSharing, Site


class Disentangled(HeadwisePosition, sees="itself", called=("DeBERTa", "disentangled attention")):
    """Adds q_i K_r and k_j Q_r to the scores q_i k_j: keys and queries computed from a learned vector of the distance
    r = i - j [He et al. 2021]. All layers use the vectors of the first layer. As published, the attention's `scale` is
    1 / sqrt(n K) for a sum of n terms."""

    reach: Natural = 512  # larger distances share the last vector; 0: no vectors
    buckets: TwoOrMore | None = None  # number of vectors per direction; far distances share one; default: reach
    by_query: bool = True  # q_i K_r, "content to position"
    by_key: bool = True  # k_j Q_r, "position to content"
    own: bool = True  # separate projections for the vectors; otherwise the attention's projections
    bias: Annotated[str, Letters("qk")] = "qk"  # separate projections that have a bias
    width: Count | None = None  # width of the vectors; default: num_heads * head width
    norm: Norm | None = None  # norm of the vectors
    dropout: Chance = 0.0  # on the vectors
    shared: bool = True  # all layers use the vectors of the first; otherwise each has its own

    @property
    def layer_sharing(self) -> LayerSharing | None:
        form = (self.each_way, self.width or f"{self.num_heads} heads", self.reads)
        return LayerSharing("shared=False", ("layer_drop", "order"), form) if self.shared else None

    @property
    def each_way(self) -> int:
        """R / 2, the number of vectors for keys before a query, and for keys after it."""
        return self.buckets or self.reach if self.reach else 0

    @property
    def reads(self) -> bool:
        return self.each_way > 0 and (self.by_query or self.by_key)


class DisentangledModule(AttentionPositionModule, of=Disentangled):
    def __init__(self, part: Disentangled, site: Site) -> None:
        super().__init__()
        H, K = part.num_heads, site.width
        W = part.width or H * K
        self.part, self.address, self.head_width = part, site.address, K
        self.needs_width = None if part.own or not part.reads else W  # of vectors that the attention projects
        self.step = re.sub(r".*\blayers\.\d+\.", "distances of ", site.address)  # the same key in all layers
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
        """(R, W) vectors of the distances, from the farthest key after a query to the farthest before it."""
        if self.table is not None:
            vectors = self.table(torch.arange(2 * self.part.each_way, device=self.table.weight.device))
            vectors = vectors if self.norm is None else self.norm(vectors)
            if self.part.shared:
                ctx.shared["distances"] = ctx.shared[self.step] = vectors
        else:
            vectors = ctx.shared.get(self.step, ctx.shared.get("distances"))
        if vectors is None:
            raise ValueError(f"{self.address}: shared=True needs a Disentangled position in the first layer")
        return F.dropout(vectors, self.part.dropout) if self.training and self.part.dropout else vectors

    def bucket(self, apart: Tensor) -> Tensor:
        """Half of the buckets of a direction contain one distance each; the others grow logarithmically."""
        part = self.part
        assert part.buckets is not None
        exact, far = part.buckets // 2, apart.abs()
        growth = torch.log(torch.tensor((part.reach - 1) / exact))  # in fp32, as the logarithms that it divides
        grown = torch.ceil(torch.log(far.clamp(min=exact) / exact) / growth * (exact - 1)) + exact
        return torch.where(far <= exact, apart, (grown * apart.sign()).long())

    def entries(self, ctx: Context, places: Tensor, most: int) -> Tensor:
        """(1 or B, T, S) the vector of each query and key, among `most` per direction; computed once for all layers."""
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
        # a short text has only short distances
        whole = ctx.state is not None or ctx.key_states is not None
        near = part.buckets is None or places.shape[-1] <= part.buckets // 2
        most = min(every, places.shape[-1]) if near and not whole else every
        table = self.vectors(ctx)[every - most : every + most].to(q.dtype)
        entries = self.entries(ctx, places, most)[:, None]  # (1 or B, 1, T, S)
        (B, H), terms = q.shape[:2], []
        if part.by_query:
            of_query = torch.matmul(q * scale, self.by_head(self.k or projections[1], table, H).transpose(1, 2))
            terms.append(of_query.gather(3, entries.expand(B, H, -1, -1)))
        if part.by_key:
            queries = self.by_head(self.q or projections[0], table, H)
            k = k if k.shape[1] == H else k.repeat_interleave(H // k.shape[1], dim=1)
            of_key = torch.matmul(k, (queries * scale).transpose(1, 2))  # (B, H, S, R)
            terms.append(of_key.gather(3, entries.transpose(2, 3).expand(B, H, -1, -1)).transpose(2, 3).contiguous())
        return q, terms[0] if len(terms) == 1 else terms[0] + terms[1]

    def by_head(self, project: Callable[[Tensor], Tensor], table: Tensor, heads: int) -> Tensor:
        """(R, W) -> (H, R, K); if there are fewer key heads, each is repeated for several queries."""
        rows = project(table).unflatten(-1, (-1, self.head_width)).transpose(0, 1)
        return rows if rows.shape[0] == heads else rows.repeat_interleave(heads // rows.shape[0], dim=0)
