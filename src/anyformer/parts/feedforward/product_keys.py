"""Product-key memory [Lample et al. 2019]: a large table of vectors instead of a feed-forward layer.

B batch, T tokens, N = B T, H heads, n keys per half, k slots per head, W width of a query, D width.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.base import PartModule
from anyformer.parts.init import Normal
from anyformer.parts.norm import LayerNorm, Norm
from anyformer.parts.op import Op
from anyformer.parts.unused import PartlyUsed
from anyformer.runtime.context import Context
from anyformer.runtime.taps import TapNames
from anyformer.specs.field_types import Count, Even
from anyformer.specs.part import Site


class ProductKeyMemory(Op, sees="itself", called=("product keys", "PKM")):
    """Each head's query is split into halves, each half is compared with `keys` keys, and a slot's score is the sum of
    two key scores. So the `top_k` best of keys^2 slots are found among top_k^2; their vectors are averaged with softmax
    weights. `norm` is applied to the halves of queries (published: a batch norm)."""

    keys: Count  # n, keys per half: there are n^2 slots
    num_heads: Count = 4
    top_k: Count = 32  # k, slots per head
    query_width: Even = 256  # W, of both halves together
    norm: Norm | None = LayerNorm()
    bias: bool = True  # bias of the query projection

    def check(self) -> None:
        if self.top_k > self.keys:
            raise ValueError(f"ProductKeyMemory.top_k is {self.top_k}; it must be at most keys, {self.keys}")


class ProductKeyMemoryModule(PartModule, of=ProductKeyMemory):
    tapped: ClassVar[TapNames] = {"weights": None}

    def __init__(self, part: ProductKeyMemory, site: Site) -> None:
        super().__init__()
        self.part, self.address = part, site.address
        half = part.query_width // 2
        self.query = nn.Linear(site.width, part.num_heads * part.query_width, bias=part.bias)
        self.norm = part.norm.build(site.child("norm", width=half)) if part.norm else None
        self.keys = nn.Parameter(torch.empty(part.num_heads, 2, part.keys, half))
        self.values = Slots(part.keys**2, site.width, part.num_heads * part.top_k)
        self.starts = {"keys": Normal(std=half**-0.5), "values.weight": Normal(std=site.width**-0.5)}

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        part = self.part
        q = self.query(x).flatten(0, 1).unflatten(-1, (part.num_heads, 2, -1))
        q = q if self.norm is None else self.norm(q)
        halves, places = torch.einsum("nhcw,hckw->nhck", q, self.keys).topk(part.top_k, dim=-1)  # (N, H, 2, k)
        sums = (halves[..., 0, :, None] + halves[..., 1, None, :]).flatten(2)  # (N, H, k^2)
        slots = (places[..., 0, :, None] * part.keys + places[..., 1, None, :]).flatten(2)
        scores, best = sums.topk(part.top_k, dim=-1)
        weights = ctx.tap(self.address, "weights", scores.float().softmax(-1).to(x.dtype))
        return self.values(slots.gather(2, best).flatten(1), weights.flatten(1)).view_as(x)


class Slots(PartlyUsed):
    def __init__(self, count: int, width: int, used: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, width))
        self.unused = max(count - used, 0) / count

    def forward(self, slots: Tensor, weights: Tensor) -> Tensor:
        """Slots (N, M) and their weights -> weighted sums (N, D)."""
        return F.embedding_bag(slots, self.weight, per_sample_weights=weights.to(self.weight.dtype), mode="sum")
