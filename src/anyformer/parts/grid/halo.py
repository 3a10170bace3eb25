"""Local attention of image blocks to themselves and the pixels around them: HaloNet [Vaswani et al. 2021]. With blocks
of one pixel: stand-alone self-attention [Ramachandran et al. 2019].

B batch, N pixels of the grid, b side of a block, h width of its halo, s = b + 2 h side of a window, n blocks, t queries
per block, H heads, K head width, V value width, C channels, D width.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.attention import EVERYTHING, attend
from anyformer.parts.computed import Computed
from anyformer.parts.init import Normal
from anyformer.parts.op import InHeads, Reshaping
from anyformer.runtime.context import Context
from anyformer.runtime.grid import Grid, Sides, layout, partition
from anyformer.runtime.taps import MIXER, TapNames
from anyformer.specs.field_types import Chance, Count, Letters, Natural
from anyformer.specs.part import Site


class HaloAttention(
    Reshaping,
    sees="all",
    called=("HaloNet", "blocked local attention", "SASA (block=1)", "stand-alone self-attention (block=1)"),
):
    """The pixels of each `block` x `block` square attend to the square and to `halo` pixels around it (none beyond the
    edge): softmax(q (k + r)) v, where half of r is learned per distance in rows and half per distance in columns. With
    block=1, every pixel has its own neighbourhood, 2 `halo` + 1 on a side. `out` is the width of the values. There is
    no output projection, because a 1 x 1 convolution follows in the bottleneck."""

    requires: ClassVar[tuple[str, ...]] = ("a grid",)
    reads_grid: ClassVar[bool] = True
    causal_alternative: ClassVar[str] = "Attention(num_heads=..., mask=Causal() & Window(size=...))"

    num_heads: Count
    block: Count = 1
    halo: Natural = 3
    step: Count = 1  # only every `step`-th row and column of queries is computed (a coarser grid); must divide `block`
    bias: Annotated[str, Letters("qkv")] = ""  # which of the projections q, k and v have a bias
    relative: bool = True  # add the relative positions r
    scale: float = 1.0  # factor of the scores; the paper uses none
    dropout: Chance = 0.0  # on the attention weights

    def check(self) -> None:
        if self.block % self.step:
            raise ValueError(f"HaloAttention.step is {self.step}; it must divide the block of {self.block}")

    @property
    def stride(self) -> Sides:
        return () if self.step == 1 else (self.step, self.step)


class HaloAttentionModule(InHeads, of=HaloAttention):
    tapped: ClassVar[TapNames] = MIXER

    def __init__(self, part: HaloAttention, site: Site) -> None:
        super().__init__(site, part.num_heads)
        D, K, out = site.width, self.head_width, part.out_width(site.width)
        if out % part.num_heads:
            raise ValueError(f"{site.address}: {out} value channels are not a multiple of {part.num_heads} heads")
        if part.relative and K % 2:
            raise ValueError(f"{site.address}: relative=True needs an even head width, got {K}")
        self.part, self.value_width = part, out // part.num_heads
        self.q, self.k, self.v = (
            nn.Linear(D, width, bias=name in part.bias) for name, width in zip("qkv", (D, D, out), strict=True)
        )
        self.rows: nn.Parameter | None = None
        self.columns: nn.Parameter | None = None
        if part.relative:
            count = 2 * (part.block + part.halo) - 1
            self.rows, self.columns = (nn.Parameter(torch.empty(count, K // 2)) for _ in range(2))
            self.starts = {name: Normal(std=K**-0.5) for name in ("rows", "columns")}
        self.entries = Computed(lambda: entries(part))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.is_token is not None:
            raise ValueError("HaloAttention needs the whole grid: give no attention_mask")
        grid, part, (B, _, _) = layout(ctx), self.part, x.shape
        assert isinstance(grid, Grid)
        queries = x if part.step == 1 else x.unflatten(1, grid)[:, :: part.step, :: part.step].flatten(1, 2)
        projected = (("q", self.q(queries)), ("k", self.k(x)), ("v", self.v(x)))
        q, k, v = (ctx.tap(self.address, name, t) for name, t in projected)
        side, after = part.block // part.step, Grid(*(-(-length // part.step) for length in grid))
        image = F.pad(q.unflatten(1, after), (0, 0, 0, -after.columns % side, 0, -after.rows % side))
        q = self.split(partition(image, side), self.head_width)
        k, v = (self.split(self.windows(t, grid), width) for t, width in ((k, self.head_width), (v, self.value_width)))
        hidden = ctx.once(
            f"halo {part.block} {part.halo}",
            lambda: torch.where(self.windows(torch.ones_like(x[:1, :, :1]), grid) > 0, 0.0, float("-inf")),
        )  # (1, n, s s, 1)
        bias = hidden.to(q.dtype)[0, :, None, None, :, 0].repeat(B, 1, 1, 1)  # (B n, 1, 1, s s)
        bias = bias.expand(-1, q.shape[1], q.shape[2], -1) if self.rows is None else bias + self.distances(q)
        out = attend(q, k, v, EVERYTHING, self.attention_plan(ctx, part.dropout, part.scale, bias))  # (B n, H, t, V)
        height, width = image.shape[1] // side, image.shape[2] // side  # in blocks
        out = out.transpose(1, 2).flatten(2).view(B, height, width, side, side, -1).transpose(2, 3)
        out = out.reshape(B, height * side, width * side, -1)[:, : after.rows, : after.columns].flatten(1, 2)
        return ctx.tap(self.address, "mixed", out)

    def split(self, x: Tensor, width: int) -> Tensor:
        """(B, n, t, H K) -> (B n, H, t, K)"""
        return x.unflatten(-1, (-1, width)).flatten(0, 1).transpose(1, 2)

    def windows(self, x: Tensor, grid: Grid) -> Tensor:
        """Cut x (B, N, C) into blocks with their halos, (B, n, s s, C), with zeros beyond the edge."""
        b, h = self.part.block, self.part.halo
        image = F.pad(x.unflatten(1, grid), (0, 0, h, h + -grid.columns % b, h, h + -grid.rows % b))
        cut = image.unfold(1, b + 2 * h, b).unfold(2, b + 2 * h, b)  # (B, rows, columns, C, s, s)
        return cut.flatten(1, 2).flatten(-2).transpose(-1, -2)

    def distances(self, q: Tensor) -> Tensor:
        """Return the relative scores q r, (B n, H, t, s s): the sum of row scores and column scores."""
        assert self.rows is not None and self.columns is not None
        down, right = self.entries()  # (t, s) each
        by_row, by_column = (
            torch.einsum("bhtk,tsk->bhts", half, table[at])
            for half, table, at in zip(q.chunk(2, -1), (self.rows, self.columns), (down, right), strict=True)
        )
        return (by_row[..., :, None] + by_column[..., None, :]).flatten(-2) * self.part.scale


def entries(part: HaloAttention) -> Tensor:
    """Return the table index (2, t, s) of the distance from each query of a block to each row and column of its
    window."""
    line = torch.arange(0, part.block, part.step)
    queries = torch.cartesian_prod(line, line).view(-1, 2).t()  # (2, t)
    keys = torch.arange(part.block + 2 * part.halo) - part.halo
    return keys - queries[..., None] + part.block + part.halo - 1
