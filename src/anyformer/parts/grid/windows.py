"""Mixing inside the windows of a grid, and a position bias over the offsets of a grid.

B batch, N windows, w side of a window, T = w * w tokens in one, H heads, D width.
"""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.cyclic_shift import roll_grid
from anyformer.parts.computed import Computed, cache_by_size, places
from anyformer.parts.grid.layout import Grid, partition
from anyformer.parts.op import Op
from anyformer.parts.position.bias import AttentionPositionModule, HeadwisePosition
from anyformer.runtime.context import Context
from anyformer.specs.checks import at_least
from anyformer.specs.part import Site, walk


class Windows(Op, sees="all", called=("Swin", "shifted windows", "window attention", "shifted window")):
    """The mixer runs in each window of `size` x `size` tokens on its own. With `shift` the grid is first moved that far
    up and left, so that windows straddle those of the layer before; what comes in round the edge is not seen by what
    was there [Liu et al. 2021]."""

    requires: ClassVar[tuple[str, ...]] = ("a grid",)

    mixer: Op
    size: int
    shift: int = 0
    fixed: bool = False  # a grid smaller than a window is filled up with zeros; else one window is as large as it

    def check(self) -> None:
        if self.size < 1 or not 0 <= self.shift < self.size:
            raise ValueError(f"windows of {self.size} tokens a side cannot be shifted by {self.shift}")
        for path, part in walk(self.mixer, "mixer"):
            if isinstance(part, Op) and part.reads_grid:
                kind = type(part).__name__
                raise ValueError(f"Windows.{path}: {kind} looks over the seams of shifted windows; Attention does not")
            if self.shift and isinstance(part, Op) and not part.packs:
                line = "reads a window as a whole, and a shifted one holds several pieces; Attention tells them apart"
                raise ValueError(f"Windows.{path}: {type(part).__name__} {line}")
            if (sharing := part.layer_sharing) is not None:
                line = f"the first layer holds what all share, and its windows may be others; set {sharing.off}"
                raise ValueError(f"Windows.{path}: {line}")
            if isinstance(part, GridBias) and part.size < self.size:
                raise ValueError(f"Windows.{path}.size is {part.size}; windows of {self.size} a side need {self.size}")

    @property
    def causal_alternative(self) -> str:
        return "Attention(num_heads=..., mask=Causal() & Window(size=...))"

    def build(self, site: Site) -> nn.Module:
        return WindowsModule(self, site)


class WindowsModule(nn.Module):
    def __init__(self, part: Windows, site: Site) -> None:
        super().__init__()
        self.size, self.shift, self.fixed = part.size, part.shift, part.fixed
        self.mixer = part.mixer.build(site.child("mixer"))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        grid, B, D = ctx.extra(Grid), x.shape[0], x.shape[2]
        assert grid is not None, "windows are cut from grids"
        if ctx.is_token is not None:
            raise ValueError("windows are cut from whole grids: give no attention_mask")
        size, shift = self.window_and_shift(grid)
        height, width = (-(-side // size) for side in grid)  # in windows
        x = self.mixer(*self.cut(x, ctx))
        x = x.view(B, height, width, size, size, D).transpose(2, 3).reshape(B, height * size, width * size, D)
        if shift:
            x = roll_grid(x, shift)
        return x[:, : grid.rows, : grid.columns].flatten(1, 2)

    def window_and_shift(self, grid: Grid) -> tuple[int, int]:
        """The windows of a grid, and how far they are moved: one that spans a side has nothing to straddle."""
        return (min(grid), 0) if min(grid) <= self.size and not self.fixed else (self.size, self.shift)

    def cut(self, x: Tensor, ctx: Context) -> tuple[Tensor, Context]:
        """(B, rows columns, D) -> (B N, T, D), and what the mixer knows"""
        grid = ctx.extra(Grid)
        assert grid is not None, "windows are cut from grids"
        (size, shift), x = self.window_and_shift(grid), x.unflatten(1, grid)
        below, right = -grid.rows % size, -grid.columns % size
        if below or right:  # zeros that are seen like any token, as published
            x = F.pad(x, (0, 0, 0, right, 0, below))
        if shift:
            x = roll_grid(x, -shift)
        B, height, width, D = x.shape
        inner = ctx.once(f"windows {size} {shift}", lambda: window_context(ctx, B, height, width, size, shift))
        return partition(x, size).view(-1, size * size, D), inner


def window_context(ctx: Context, B: int, height: int, width: int, size: int, shift: int) -> Context:
    """What the mixer knows: rows of the batch are windows, and what a shift brought together are packed documents."""
    index = places(size * size, ctx.index.device)
    documents = regions(height, width, size, shift, index.device).repeat(B, 1) if shift else None  # (B N, T)
    return ctx.replace(Grid(size, size), index=index, positions=index[None], documents=documents, shared={})


@cache_by_size
def regions(height: int, width: int, size: int, shift: int, device: torch.device) -> Tensor:
    """(N, T) numbers of the regions that a shift brings together in the windows of a grid."""
    bands = []
    for length in (height, width):  # three a side: untouched, the end of the grid, what came in round the edge
        place = torch.arange(length, device=device)
        bands.append((place >= length - size).long() + (place >= length - shift).long())
    region = bands[0][:, None] * 3 + bands[1]
    return partition(region[None, :, :, None], size)[0, ..., 0]


class GridBias(HeadwisePosition, sees="itself", called=("Swin bias", "2D relative bias")):
    """One learned scalar a head and offset in rows and columns, on grids of up to `size` x `size` [Liu et al. 2021]."""

    requires: ClassVar[tuple[str, ...]] = ("a grid",)

    size: int

    def build(self, site: Site) -> nn.Module:
        return GridBiasModule(self)


class ContinuousGridBias(GridBias, sees="itself", called=("Swin V2 bias", "log-spaced bias")):
    """A small MLP gives the scalars, from the logarithms of both offsets: windows of another size than it learned in
    (`learned`) ask it for offsets in between [Liu et al. 2022]. None is above `most`, none below 0."""

    learned: int = 0  # windows of so many a side are those it was pretrained in; 0: of `size`
    width: int = 512
    most: float = 16.0

    def check(self) -> None:
        at_least(self, 1, "num_heads", "size", "width")
        at_least(self, 0, "learned")
        if self.learned == 1:
            raise ValueError("ContinuousGridBias.learned is 1: a window of one token has no offsets to learn from")

    def build(self, site: Site) -> nn.Module:
        return ContinuousGridBiasModule(self)


class GridBiasModule(AttentionPositionModule):
    def __init__(self, part: GridBias) -> None:
        super().__init__()
        self.size = part.size
        self.whole = Computed(lambda: offsets(part.size, part.size, part.size))  # of windows as large as they can be
        self.fill(part)

    def fill(self, part: Any) -> None:
        self.weight = nn.Parameter(torch.zeros((2 * part.size - 1) ** 2, part.num_heads))

    def table(self) -> Tensor:
        """(offsets, H)"""
        return self.weight

    def bias(self, q: Tensor, places: Tensor, scale: float, ctx: Context) -> tuple[Tensor, Tensor | None]:
        return q, F.embedding(self.rows(ctx), self.table()).permute(2, 0, 1).contiguous()[None]  # (1, H, T, T)

    def rows(self, ctx: Context) -> Tensor:
        """(T, T) the row of the table for each query and key."""
        grid = ctx.extra(Grid)
        if grid is None or max(grid) > self.size:
            found = "no grid" if grid is None else f"a grid of {grid.rows} x {grid.columns}"
            raise ValueError(f"a position bias of {self.size} x {self.size} offsets cannot place {found}")
        if min(grid) == self.size:
            return self.whole()
        make = functools.partial(offsets, *grid, self.size, ctx.index.device)
        return ctx.once(f"offsets {self.size}", make)


def offsets(rows: int, columns: int, size: int, device: torch.device | None = None) -> Tensor:
    """(T, T) the row in a table of the offsets of `size` x `size` for each query and key of a grid."""
    places = torch.arange(rows * columns, device=device)
    down, right = ((at[:, None] - at) + size - 1 for at in (places // columns, places % columns))
    return down * (2 * size - 1) + right


class ContinuousGridBiasModule(GridBiasModule):
    def fill(self, part: Any) -> None:
        self.up, self.down = nn.Linear(2, part.width), nn.Linear(part.width, part.num_heads, bias=False)
        self.most, self.offsets = part.most, Computed(lambda: logarithms(part.size, part.learned or part.size))

    def table(self) -> Tensor:
        offsets = self.offsets().to(self.up.weight.dtype)
        return self.most * self.down(F.relu(self.up(offsets))).sigmoid()


def logarithms(size: int, learned: int) -> Tensor:
    """((2 size - 1)^2, 2) rows and columns of every offset, so that the farthest of the learned windows is about 1."""
    line = 8 * torch.arange(1 - size, size, dtype=torch.float32) / max(learned - 1, 1)
    line = line.sign() * (line.abs() + 1).log2() / math.log2(8)
    return torch.cartesian_prod(line, line).view(-1, 2)
