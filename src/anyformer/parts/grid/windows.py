"""Mixers inside the windows of a grid.

B batch, N windows, w side of a window, T = w * w tokens per window, H heads, D width.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels.cyclic_shift import roll_grid
from anyformer.parts.base import PartModule
from anyformer.parts.computed import cache_by_size, places
from anyformer.parts.op import Op
from anyformer.parts.position.grid import GridBias
from anyformer.runtime.context import Context
from anyformer.runtime.grid import Grid, partition
from anyformer.specs.field_types import Count, Natural
from anyformer.specs.part import Site, walk


class Windows(Op, sees="all", called=("Swin", "shifted windows", "window attention", "shifted window")):
    """Runs the mixer in each window of `size` x `size` tokens separately [Liu et al. 2021]. With `shift`, the grid is
    first rolled up and left by that many tokens, so windows overlap the previous layer's; tokens from opposite edges
    do not see each other."""

    requires: ClassVar[tuple[str, ...]] = ("a grid",)
    causal_alternative: ClassVar[str] = "Attention(num_heads=..., mask=Causal() & Window(size=...))"

    mixer: Op
    size: Count
    shift: Natural = 0
    fixed: bool = False  # zero-pad a grid that is smaller than a window; False: shrink the window to the grid

    def check(self) -> None:
        if self.shift >= self.size:
            raise ValueError(f"Windows.shift is {self.shift}; it must be below size {self.size}")
        for path, part in walk(self.mixer, "mixer"):
            if isinstance(part, Op) and part.reads_grid:
                kind = type(part).__name__
                raise ValueError(f"Windows.{path}: {kind} ignores the seams of shifted windows; use Attention")
            if self.shift and isinstance(part, Op) and not part.packs:
                kind = type(part).__name__
                raise ValueError(f"Windows.{path}: {kind} cannot separate the parts of a shifted window; use Attention")
            if (sharing := part.layer_sharing) is not None:
                raise ValueError(
                    f"Windows.{path}: layers share values of the first layer, but windows may differ; set {sharing.off}"
                )
            if isinstance(part, GridBias) and part.size < self.size:
                raise ValueError(f"Windows.{path}.size is {part.size}; windows of size {self.size} need {self.size}")


class WindowsModule(PartModule, of=Windows):
    def __init__(self, part: Windows, site: Site) -> None:
        super().__init__()
        self.size, self.shift, self.fixed = part.size, part.shift, part.fixed
        self.mixer = part.mixer.build(site.child("mixer"))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        grid, B, D = ctx.extra(Grid), x.shape[0], x.shape[2]
        assert grid is not None, "windows are cut from grids"
        if ctx.is_token is not None:
            raise ValueError("Windows needs the whole grid: give no attention_mask")
        size, shift = self.window_and_shift(grid)
        height, width = (-(-side // size) for side in grid)  # in windows
        x = self.mixer(*self.cut(x, ctx))
        x = x.view(B, height, width, size, size, D).transpose(2, 3).reshape(B, height * size, width * size, D)
        if shift:
            x = roll_grid(x, shift)
        return x[:, : grid.rows, : grid.columns].flatten(1, 2)

    def window_and_shift(self, grid: Grid) -> tuple[int, int]:
        """Return the window size and shift for a grid. A window that spans a whole side is not shifted."""
        return (min(grid), 0) if min(grid) <= self.size and not self.fixed else (self.size, self.shift)

    def cut(self, x: Tensor, ctx: Context) -> tuple[Tensor, Context]:
        """Cut x (B, rows columns, D) into windows (B N, T, D); return them and the mixer's context."""
        grid = ctx.extra(Grid)
        assert grid is not None, "windows are cut from grids"
        (size, shift), x = self.window_and_shift(grid), x.unflatten(1, grid)
        below, right = -grid.rows % size, -grid.columns % size
        if below or right:  # as published, tokens attend to these zeros too
            x = F.pad(x, (0, 0, 0, right, 0, below))
        if shift:
            x = roll_grid(x, -shift)
        B, height, width, D = x.shape
        inner = ctx.once(f"windows {size} {shift}", lambda: window_context(ctx, B, height, width, size, shift))
        return partition(x, size).view(-1, size * size, D), inner


def window_context(ctx: Context, B: int, height: int, width: int, size: int, shift: int) -> Context:
    """Return the mixer's context: batch rows are windows; regions that a shift joined are packed documents."""
    index = places(size * size, ctx.index.device)
    documents = regions(height, width, size, shift, index.device).repeat(B, 1) if shift else None  # (B N, T)
    return ctx.replace(Grid(size, size), index=index, positions=index[None], documents=documents, shared={})


@cache_by_size
def regions(height: int, width: int, size: int, shift: int, device: torch.device) -> Tensor:
    """Return the region of each token (N, T) in the windows of a shifted grid."""
    bands = []
    for length in (height, width):  # three bands per side: untouched, end of the grid, rolled over the edge
        index = torch.arange(length, device=device)
        bands.append((index >= length - size).long() + (index >= length - shift).long())
    region = bands[0][:, None] * 3 + bands[1]
    return partition(region[None, :, :, None], size)[0, ..., 0]
