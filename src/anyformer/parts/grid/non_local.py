"""Attention over a whole image (non-local blocks), or over rows and columns (criss-cross attention).

B batch, N pixels of the grid, M pixels attended to, R rows, C columns, W inner width, H heads, K head width, D width.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.base import PartModule
from anyformer.parts.norm import BatchNorm, Norm
from anyformer.parts.op import InHeads, Op
from anyformer.runtime.context import Context
from anyformer.runtime.grid import Grid, layout, on_grid
from anyformer.runtime.taps import MIXER, TapNames
from anyformer.specs.field_types import Count
from anyformer.specs.part import Site

NEEDS_WHOLE_GRID = "attention over a grid needs the whole grid: give no attention_mask and no document_ids"


class NonLocal(Op, sees="all", called=("non-local block", "non-local", "non-local neural network")):
    """y = norm(o(sum f(x_i, x_j) v(x_j))) over all pixels j [Wang et al. 2018]. f is softmax(q k) ("embedded"),
    softmax(x_i x_j) ("gaussian"), q k / M ("product") or relu(w [q, k]) / M ("concatenation"). The norm's weight is
    initialised to zero, so a new block changes nothing."""

    requires: ClassVar[tuple[str, ...]] = ("a grid",)
    reads_grid: ClassVar[bool] = True
    packs: ClassVar[bool] = False
    causal_alternative: ClassVar[str] = "Attention(num_heads=1, mask=Causal())"

    similarity: Literal["embedded", "gaussian", "product", "concatenation"] = "embedded"
    width: Count | None = None  # W; default: half of the model's width
    pool: Count = 1  # keys and values are max-pooled over `pool` x `pool` pixels
    norm: Norm | None = BatchNorm()


class NonLocalModule(PartModule, of=NonLocal):
    def __init__(self, part: NonLocal, site: Site) -> None:
        super().__init__()
        self.part, self.address, D = part, site.address, site.width
        W, projects = part.width or max(D // 2, 1), part.similarity != "gaussian"
        self.q, self.k = (nn.Linear(D, W) if projects else None for _ in range(2))
        self.v, self.o = nn.Linear(D, W), nn.Linear(W, D)
        self.join = nn.Linear(2 * W, 1, bias=False) if part.similarity == "concatenation" else None
        self.norm = part.norm.build(site.child("norm")) if part.norm else None
        has_weight = self.norm is not None and "weight" in dict(self.norm.named_parameters())
        self.starts: dict[str, Any] = {"norm.weight": 0.0} if has_weight else {}
        self.tapped: TapNames = MIXER if projects else {name: MIXER[name] for name in ("v", "weights", "mixed")}

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.is_token is not None or ctx.documents is not None:
            raise ValueError(NEEDS_WHOLE_GRID)
        size, pooled = self.part.pool, x
        if size > 1:
            pooled = on_grid(x, layout(ctx), lambda image: F.max_pool2d(image, size, ceil_mode=True))
        q = x if self.q is None else ctx.tap(self.address, "q", self.q(x))
        k = pooled if self.k is None else ctx.tap(self.address, "k", self.k(pooled))
        v = ctx.tap(self.address, "v", self.v(pooled))
        weights = ctx.tap(self.address, "weights", self.weights(q, k)[:, None])[:, 0]
        y = self.o(ctx.tap(self.address, "mixed", torch.matmul(weights, v)))
        return y if self.norm is None else self.norm(y)

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """(B, N, M)"""
        if self.join is not None:
            of_query, of_key = self.join.weight[0].chunk(2)
            return F.relu((q @ of_query)[..., None] + (k @ of_key)[:, None]) / k.shape[1]
        scores = torch.matmul(q, k.transpose(1, 2))
        if self.part.similarity == "product":
            return scores / k.shape[1]
        return scores.to(torch.promote_types(q.dtype, torch.float32)).softmax(-1).to(q.dtype)


class CrissCross(Op, sees="all", called=("CC-Net", "criss-cross attention")):
    """Each pixel attends to its row and its column: softmax(q k) v over R + C - 1 pixels [Huang et al. 2019]. Two such
    layers with the same weights (`Stack.order`) connect all pixels. The paper's residual is ReZero."""

    requires: ClassVar[tuple[str, ...]] = ("a grid",)
    reads_grid: ClassVar[bool] = True
    packs: ClassVar[bool] = False
    causal_alternative: ClassVar[str] = "Attention(num_heads=1, mask=Causal() & Axial(columns=...))"

    num_heads: Count = 1
    reduction: Count = 8  # the width of queries and keys is the model's width divided by this
    bias: bool = True


class CrissCrossModule(InHeads, of=CrissCross):
    tapped: ClassVar[TapNames] = MIXER

    def __init__(self, part: CrissCross, site: Site) -> None:
        super().__init__(site, part.num_heads)
        H, D = part.num_heads, site.width
        K = max(self.head_width // part.reduction, 1)
        self.q, self.k, self.v = (nn.Linear(D, width, bias=part.bias) for width in (H * K, H * K, D))
        self.num_heads = H

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.is_token is not None or ctx.documents is not None:
            raise ValueError(NEEDS_WHOLE_GRID)
        grid, H = layout(ctx), self.num_heads
        assert isinstance(grid, Grid)
        projected = zip("qkv", (self.q(x), self.k(x), self.v(x)), strict=True)
        q, k, v = (ctx.tap(self.address, name, t).unflatten(2, (H, -1)).unflatten(1, grid) for name, t in projected)
        down = torch.einsum("brchk,bschk->bhrcs", q, k)  # to every row s of its column
        right = torch.einsum("brchk,brdhk->bhrcd", q, k)  # to every column d of its row
        dtype = torch.promote_types(x.dtype, torch.float32)
        itself = torch.eye(grid.rows, dtype=torch.bool, device=x.device)[:, None]  # already counted in its row
        scores = torch.cat((down.to(dtype).masked_fill(itself, float("-inf")), right.to(dtype)), dim=-1)
        weights = scores.softmax(-1).to(x.dtype).flatten(2, 3)
        weights = ctx.tap(self.address, "weights", weights)  # (B, H, N, R + C)
        down, right = weights.unflatten(2, grid).split((grid.rows, grid.columns), -1)
        mixed = torch.einsum("bhrcs,bschk->brchk", down, v) + torch.einsum("bhrcd,brdhk->brchk", right, v)
        return ctx.tap(self.address, "mixed", mixed.flatten(3).flatten(1, 2))
