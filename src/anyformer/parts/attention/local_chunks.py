"""Attention among neighbours: a text is cut into chunks in its order, and each chunk looks at those beside it.

B batch, T tokens, S tokens seen, H heads, K head width, D width.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.parts.attention.lsh import MASKS, BucketsModule, InChunks
from anyformer.runtime.context import Context, at_places
from anyformer.runtime.taps import MIXER, TapNames
from anyformer.specs.part import Sees, Site


class ChunkAttention(InChunks, sees="past", called=("block-local attention", "Reformer's local attention")):
    """A token sees its chunk of `chunk` tokens, `before` chunks in front of it and `after` behind it, pads not counted.

    In a `ring` the last chunk stands before the first; one that is so met twice counts twice, by which the length of
    a text matters at every place of it [Kitaev et al. 2020, as published]."""

    packs: ClassVar[bool] = False

    ring: bool = False

    def check(self) -> None:
        super().check()
        if not self.ring and (self.loose or self.multiple):
            raise ValueError(
                "ChunkAttention.ring: without one the length of a row changes nothing, so set no loose and no multiple"
            )

    def reaches(self) -> Sees | None:
        return "past" if self.causal and (self.loose or not self.ring) else "all"

    @property
    def causal_alternative(self) -> str:
        return repr(self.replace(causal=True, ring=False, multiple=None))

    def build(self, site: Site) -> nn.Module:
        return ChunkAttentionModule(self, site)


class ChunkAttentionModule(BucketsModule):
    tapped: ClassVar[TapNames] = MIXER
    own_bucket, rounds, buckets = False, 1, 1  # all in one

    def __init__(self, part: ChunkAttention, site: Site) -> None:
        super().__init__(site, part.num_heads, part.head_width)
        inner, D = part.num_heads * self.head_width, site.width
        self.part, self.chunk, self.before, self.after = part, part.chunk, part.before, part.after
        self.ring, self.multiple = part.ring, part.multiple
        self.q, self.k, self.v = (nn.Linear(D, inner, bias=part.bias) for _ in range(3))
        self.o = nn.Linear(inner, D, bias=part.bias)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.documents is not None:
            raise ValueError(
                f"{self.address}: chunks are counted from the start of a row, which holds one text: "
                "documents cannot be packed"
            )
        q, k, v = (
            self.heads(ctx.tap(self.address, n, layer(x))) for n, layer in (("q", self.q), ("k", self.k), ("v", self.v))
        )
        bucket = torch.zeros(*q.shape[:3], 1, dtype=torch.long, device=x.device)
        out = self.look(q, k, v, bucket, self.head_width**-0.5, ctx)
        return self.o(ctx.tap(self.address, "mixed", out.transpose(1, 2).flatten(2)))

    def visit_counts(self, places: Tensor, ctx: Context) -> Tensor:
        mask, key = MASKS[self.part.causal]
        mine, theirs = ctx.index, places
        if ctx.is_token is not None:  # pads are in no chunk
            theirs = ctx.is_token.cumsum(-1) - 1
            mine = at_places(theirs, ctx.index)
        apart = (mine // self.chunk)[..., None] - (theirs // self.chunk)[..., None, :]
        near = ((apart <= self.before) & (apart >= -self.after)).view(-1, 1, *apart.shape[-2:])
        return (ctx.visible(mask, key, places).dense() & near).long()
