"""Attention with pooled queries, keys and values, which makes the grid coarser [Fan et al. 2021].

B batch, T tokens, H heads, K head width, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.attention import EVERYTHING, attend
from anyformer.parts.base import PartModule
from anyformer.parts.init import Initializer, Kaiming
from anyformer.parts.mask import FULL
from anyformer.parts.norm import Norm
from anyformer.parts.op import InHeads, Reshaping
from anyformer.parts.position.grid import GridVectors
from anyformer.runtime.context import Context, leading_pads
from anyformer.runtime.grid import NEEDS, KeyGrid, Layout, Sides, laid_out, layout, on_grid, with_stride
from anyformer.runtime.taps import MIXER, TapNames
from anyformer.specs.field_types import QKVO, Chance, Count
from anyformer.specs.part import Part, Site

POOLS: dict[str, dict[int, Callable[..., Tensor]]] = {
    "max": {2: F.max_pool2d, 3: F.max_pool3d},
    "mean": {2: F.avg_pool2d, 3: F.avg_pool3d},
}


class GridPool(Part, sees="all"):
    """Pools windows of size `kernel` of a grid to one vector each, by a depthwise convolution (shared by all heads),
    the maximum or the mean. Windows are `stride` apart; the padding is half of the kernel. Prefix tokens only
    get the norm."""

    kernel: Sides
    stride: Sides
    by: Literal["convolution", "max", "mean"] = "convolution"
    norm: Norm | None = None

    def check(self) -> None:
        if len(self.kernel) not in NEEDS or len(self.kernel) != len(self.stride):
            sizes = f"kernel is {self.kernel} and stride {self.stride}"
            raise ValueError(f"GridPool: {sizes}; give (rows, columns) or (frames, rows, columns) for both")
        if min(*self.kernel, *self.stride) < 1:
            raise ValueError(f"GridPool: kernel is {self.kernel} and stride {self.stride}; they must be at least 1")

    @property
    def edge(self) -> Sides:
        return tuple(size // 2 for size in self.kernel)

    def coarser(self, grid: Layout) -> Layout:
        """Return the grid after pooling."""
        sides = zip(grid, self.kernel, self.stride, self.edge, strict=True)
        return laid_out(*((side + 2 * edge - size) // step + 1 for side, size, step, edge in sides))


class GridPoolModule(PartModule, of=GridPool):
    starts: ClassVar[dict[str, Initializer]] = {"convolution.weight": Kaiming(gain=3**-0.5, normal=False)}

    def __init__(self, part: GridPool, site: Site) -> None:
        super().__init__()
        self.part, K, kind = part, site.width, {2: nn.Conv2d, 3: nn.Conv3d}[len(part.kernel)]
        self.convolution: nn.Module | None = None
        if part.by == "convolution":
            self.convolution = kind(K, K, part.kernel, part.stride, part.edge, groups=K, bias=False)  # type: ignore[arg-type]
        self.norm = part.norm.build(site.child("norm")) if part.norm else None

    def forward(self, x: Tensor, grid: Layout) -> Tensor:
        """(B, H, T, K) -> (B, H, T of the coarser grid, K)"""
        x = on_grid(x.flatten(0, 1), grid, self.pool).unflatten(0, x.shape[:2])
        return x if self.norm is None else self.norm(x)

    def pool(self, image: Tensor) -> Tensor:
        if self.convolution is not None:
            # torch 2.13 on a CPU: the bf16 weight gradient of an image with gaps in memory has uninitialized values
            return self.convolution(image.contiguous())
        part = self.part
        return POOLS[part.by][len(part.kernel)](image, part.kernel, part.stride, part.edge)


class PooledAttention(Reshaping, sees="all", called=("MViT", "pooling attention", "multiscale attention")):
    """Attention of pooled queries to pooled keys and values. If queries are pooled with a stride, the grid becomes
    coarser [Fan et al. 2021]."""

    packs: ClassVar[bool] = False
    reads_grid: ClassVar[bool] = True
    causal_alternative: ClassVar[str] = "Attention(num_heads=..., mask=Causal())"

    num_heads: Count
    queries: GridPool | None = None
    keys: GridPool | None = None  # of keys and values, with separate weights
    bias: QKVO = "qkvo"  # which projections have a bias
    position: GridVectors | None = None
    # add the pooled queries to the output [Li et al. 2022]; "rest": except for the first (class) token
    add_queries: Literal["none", "rest", "all"] = "none"
    dropout: Chance = 0.0  # on the attention weights

    def check(self) -> None:
        if len({*self.sides}) > 1:
            raise ValueError("PooledAttention: queries, keys and position must all be for images or all for videos")
        if self.queries is not None and any(size % 2 == 0 for size in self.queries.kernel):
            raise ValueError(f"PooledAttention.queries.kernel is {self.queries.kernel}; its sizes must be odd")
        if any(step > 1 and step % 2 for step in self.stride):
            raise ValueError(f"PooledAttention.queries.stride is {self.stride}; its sizes must be 1 or even")

    @property
    def sides(self) -> list[int]:
        pools = [len(pool.kernel) for pool in (self.queries, self.keys) if pool is not None]
        return pools if self.position is None else [*pools, len(self.position.size)]

    @property
    def requires(self) -> tuple[str, ...]:
        return tuple(NEEDS[sides] for sides in self.sides[:1])

    @property
    def stride(self) -> Sides:
        return () if self.queries is None else self.queries.stride


class PooledAttentionModule(InHeads, of=PooledAttention):
    def __init__(self, part: PooledAttention, site: Site) -> None:
        width = part.out_width(site.width)
        if width % part.num_heads:
            raise ValueError(f"{site.address}: width {width} is not a multiple of {part.num_heads} heads")
        super().__init__(site, part.num_heads, width // part.num_heads)
        self.part, K = part, self.head_width
        self.q, self.k, self.v = (nn.Linear(site.width, width, bias=name in part.bias) for name in "qkv")
        self.o = nn.Linear(width, width, bias="o" in part.bias)
        self.queries = part.queries.build(site.child("queries", width=K)) if part.queries else None
        self.keys, self.values = (
            part.keys.build(site.child(name, width=K)) if part.keys else None for name in ("keys", "values")
        )
        self.position: Any = part.position.build(site.child("position", width=K)) if part.position else None
        self.tapped: TapNames = {**MIXER, **({"position": None} if part.position else {})}

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.is_token is not None and self.part.sides:
            raise ValueError("PooledAttention needs the whole grid: give no attention_mask")
        if ctx.documents is not None:
            raise ValueError(f"{self.address}: PooledAttention cannot separate packed documents; give no document_ids")
        projected = (ctx.tap(self.address, name, layer(x)) for name, layer in zip("qkv", (self.q, self.k, self.v)))
        pools = self.queries, self.keys, self.values
        q, k, v = (
            self.heads(t) if pool is None else pool(self.heads(t), layout(ctx))
            for t, pool in zip(projected, pools, strict=True)
        )
        scale, bias = self.head_width**-0.5, None
        if self.position is not None:
            pooled = self.query_context(ctx)
            bias = ctx.tap(self.address, "position", self.position.bias(q, pooled.index, scale, pooled)[1])
        visible = EVERYTHING if ctx.is_token is None else ctx.visible(FULL, "these, Full()", ctx.index)
        out = attend(q, k, v, visible, self.attention_plan(ctx, self.part.dropout, scale, bias))
        out, q = ctx.tap(self.address, "mixed", out.transpose(1, 2).flatten(2)), q.transpose(1, 2).flatten(2)
        if self.part.add_queries == "all":
            out = out + q
        elif self.part.add_queries == "rest":
            start = 0 if ctx.is_token is None else leading_pads(ctx.is_token)
            out = out + q.masked_fill((torch.arange(q.shape[1], device=q.device) == start)[..., None], 0)
        return self.o(out)

    def query_context(self, ctx: Context) -> Context:
        """Return the context of the pooled queries, with the grid of the keys."""
        after, keys = with_stride(ctx, self.part.stride), layout(ctx)
        return after.replace(KeyGrid(keys if self.part.keys is None else self.part.keys.coarser(keys)))


class Skip(Part, sees="all", called=("pooled skip", "projection shortcut")):
    """The skip connection of a branch that changes the width or grid: a projection, then max or mean pooling
    [Fan et al. 2021]. Windows are larger than the stride by 1."""

    by: Literal["max", "mean"] = "max"

    def fit(self, op: Reshaping, site: Site) -> nn.Module:
        return SkipModule(self, op, site)


class SkipModule(nn.Module):
    def __init__(self, part: Skip, op: Reshaping, site: Site) -> None:
        super().__init__()
        out, self.pool = op.out_width(site.width), None
        self.project = nn.Linear(site.width, out) if out != site.width else None
        if math.prod(op.stride) > 1:
            kernel = tuple(step + 1 if step > 1 else 1 for step in op.stride)
            self.pool = GridPool(kernel=kernel, stride=op.stride, by=part.by).build(site)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T of the coarser grid, the branch's width)"""
        if self.project is not None:
            x = self.project(x)
        return x if self.pool is None else self.pool(x[:, None], layout(ctx))[:, 0]
