"""Local attention: a text is cut into consecutive chunks, and each chunk attends to its neighbours.

B batch, T tokens, S visible tokens, H heads, K head width, D width.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.parts.attention.lsh import MASKS, BucketsModule, InChunks
from anyformer.runtime.context import Context, select_tokens
from anyformer.runtime.taps import MIXER, TapNames
from anyformer.specs.part import Sees, Site


class ChunkAttention(InChunks, sees="past", called=("block-local attention", "Reformer's local attention")):
    """A token sees its own chunk of `chunk` tokens, `before` chunks before it and `after` after it; pads do not count.

    With `ring` the last chunk precedes the first. A chunk that is reached twice counts twice, so the length of a text
    affects all of its tokens [Kitaev et al. 2020, as published]."""

    packs: ClassVar[bool] = False

    ring: bool = False  # the last chunk precedes the first

    def check(self) -> None:
        super().check()
        if not self.ring and (self.loose or self.multiple):
            raise ValueError(
                "ChunkAttention.ring is False: loose and multiple have no effect; set ring=True or omit them"
            )

    def reaches(self) -> Sees | None:
        return "past" if self.causal and (self.loose or not self.ring) else "all"

    @property
    def causal_alternative(self) -> str:
        return repr(self.replace(causal=True, ring=False, multiple=None))


class ChunkAttentionModule(BucketsModule, of=ChunkAttention):
    tapped: ClassVar[TapNames] = MIXER
    own_bucket, rounds, buckets = False, 1, 1  # all tokens in one bucket

    def __init__(self, part: ChunkAttention, site: Site) -> None:
        super().__init__(site, part.num_heads, part.head_width)
        inner, D = part.num_heads * self.head_width, site.width
        self.part, self.chunk, self.before, self.after = part, part.chunk, part.before, part.after
        self.ring, self.multiple = part.ring, part.multiple
        self.q, self.k, self.v = (nn.Linear(D, inner, bias=part.bias) for _ in range(3))
        self.o = nn.Linear(inner, D, bias=part.bias)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.documents is not None:
            raise ValueError(f"{self.address}: documents cannot be packed, because chunks begin at the start of a row")
        q, k, v = (
            self.heads(ctx.tap(self.address, n, layer(x))) for n, layer in (("q", self.q), ("k", self.k), ("v", self.v))
        )
        bucket = torch.zeros(*q.shape[:3], 1, dtype=torch.long, device=x.device)
        out = self.attend_in_buckets(q, k, v, bucket, self.head_width**-0.5, ctx)
        return self.o(ctx.tap(self.address, "mixed", out.transpose(1, 2).flatten(2)))

    def visit_counts(self, places: Tensor, ctx: Context) -> Tensor:
        mask, key = MASKS[self.part.causal]
        queries, keys = ctx.index, places
        if ctx.is_token is not None:  # pads are in no chunk
            keys = ctx.is_token.cumsum(-1) - 1
            queries = select_tokens(keys, ctx.index)
        distance = (queries // self.chunk)[..., None] - (keys // self.chunk)[..., None, :]
        near = ((distance <= self.before) & (distance >= -self.after)).view(-1, 1, *distance.shape[-2:])
        return (ctx.visible(mask, key, places).dense() & near).long()
