"""Grids of image and video tokens, and positions on them.

B batch, T tokens, N tokens of the grid, P prefix tokens before the grid, H heads, K head width, C channels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.base import PartModule
from anyformer.parts.position.absolute import AttentionPosition, AttentionPositionModule, Learned, check_positions
from anyformer.parts.position.rotary import Rope, RopeModule
from anyformer.runtime.context import Context
from anyformer.specs.field_types import Count, Positive
from anyformer.specs.part import Part, Site

Sides = tuple[int, ...]  # (rows, columns), or (frames, rows, columns) of a video


class Grid(NamedTuple):
    """The grid of an image's tokens, which are in row-major order."""

    rows: int
    columns: int


class Volume(NamedTuple):
    """The grid of a video's tokens, frame by frame."""

    frames: int
    rows: int
    columns: int


Layout = Grid | Volume
NEEDS = {2: "an image", 3: "a video"}  # number of sides -> what a Part requires from the embedding


class KeyGrid(NamedTuple):
    """The grid of the keys, if it differs from the grid of the queries."""

    grid: Layout


def laid_out(*sides: int) -> Layout:
    return Grid(*sides) if len(sides) == 2 else Volume(*sides)


def layout(ctx: Context) -> Layout:
    """Return the grid of this pass's tokens (prefix tokens precede it)."""
    grid = ctx.extra(Grid) or ctx.extra(Volume)
    assert grid is not None, "these tokens are not in a grid"
    return grid


def on_grid(x: Tensor, grid: Layout, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `change` to the grid of x (B, P + N, C), as (B, C, ...); prefix tokens are kept. Returns (B, P + M, C)."""
    before, x = x[:, : -math.prod(grid)], x[:, -math.prod(grid) :]
    x = change(x.transpose(1, 2).unflatten(2, grid)).flatten(2).transpose(1, 2)
    return torch.cat((before, x), dim=1) if before.shape[1] else x


def as_image(x: Tensor, grid: Layout | None) -> Tensor:
    """(B, N, D) -> (B, D, rows, columns)"""
    assert grid is not None
    return x.transpose(1, 2).unflatten(2, grid).contiguous()


def partition(x: Tensor, size: int) -> Tensor:
    """Cut x (B, rows, columns, D) into windows of `size` x `size`: (B, windows, T, D), both in row-major order."""
    B, rows, columns, D = x.shape
    cut = x.reshape(B, rows // size, size, columns // size, size, D).transpose(2, 3)
    return cut.reshape(B, -1, size * size, D)


class Down(Part):
    """Base class of steps between stages. The module maps x (B, N, D), its grid and the `Context` to a wider x or a
    coarser grid, and returns both."""

    def coarser(self, grid: Grid) -> Grid:
        """Return the grid after this step."""
        raise NotImplementedError

    def out_width(self, width: int) -> int:
        raise NotImplementedError


def strided_grid(grid: Layout, stride: Sides) -> Layout:
    """Return the grid of every `stride`-th token along each side."""
    return laid_out(*(-(-side // step) for side, step in zip(grid, stride, strict=True))) if stride else grid


def with_stride(ctx: Context, stride: Sides) -> Context:
    """Return the context of every `stride`-th token along each side of the grid."""

    def make() -> Context:
        grid = layout(ctx)
        after = strided_grid(grid, stride)
        before = ctx.index.shape[-1] - math.prod(grid)
        index = torch.arange(before + math.prod(after), device=ctx.index.device)
        return ctx.replace(after, index=index, positions=index[None], shared={})

    return ctx if math.prod(stride) == 1 else ctx.once(f"stride {stride}", make)


class SeparableLearned(Learned, sees="itself", called=("separable positions",)):
    """Two tables: the vector of a position is the sum of a vector of its frame and a vector of its index in the frame
    [Fan et al. 2021]."""

    frames: Count  # number of frames in `length` positions

    def check(self) -> None:
        super().check()
        if self.length % self.frames or self.padding:
            raise ValueError(f"SeparableLearned.length {self.length} is not a multiple of frames={self.frames}")


class SeparableLearnedModule(PartModule, of=SeparableLearned):
    def __init__(self, part: SeparableLearned, site: Site) -> None:
        super().__init__()
        self.length, self.offset = part.length, part.offset
        self.frames = nn.Parameter(torch.zeros(part.frames, site.width))
        self.places = nn.Parameter(torch.zeros(part.length // part.frames, site.width))
        self.before = nn.Parameter(torch.zeros(part.offset, site.width)) if part.offset else None

    def forward(self, positions: Tensor | None = None) -> Tensor:
        """Return the vectors of `positions`; None: the whole table, `offset` rows first."""
        table = (self.frames[:, None] + self.places).flatten(0, 1)
        table = table if self.before is None else torch.cat((self.before, table))
        if positions is None:
            return table
        return table[check_positions(positions, self.length) + self.offset]


class GridVectors(
    AttentionPosition,
    sees="itself",
    called=("decomposed relative positions", "MViTv2 positions", "axial relative positions"),
):
    """One learned vector per distance in rows, in columns (and in frames); their products with the query are added to
    the scores [Li et al. 2022]. Vectors are interpolated for grids of other sizes. Keys of a coarser grid have the
    coordinates of the cells that they were pooled from."""

    size: Sides

    def check(self) -> None:
        if len(self.size) not in NEEDS or min(self.size) < 1:
            raise ValueError(f"GridVectors.size is {self.size}; give (rows, columns) or (frames, rows, columns)")

    @property
    def requires(self) -> tuple[str, ...]:
        return (NEEDS[len(self.size)],)


class GridVectorsModule(AttentionPositionModule, of=GridVectors):
    def __init__(self, part: GridVectors, site: Site) -> None:
        super().__init__()
        self.sides = ("frames", "rows", "columns")[-len(part.size) :]
        for name, size in zip(self.sides, part.size, strict=True):
            self.register_parameter(name, nn.Parameter(torch.zeros(2 * size - 1, site.width)))

    def bias(self, q: Tensor, places: Tensor, scale: float, ctx: Context) -> tuple[Tensor, Tensor | None]:
        grid, keys = layout(ctx), ctx.extra(KeyGrid)
        keys_grid = grid if keys is None else keys.grid
        q_grid = q[:, :, -math.prod(grid) :].unflatten(2, grid)  # (B, H, rows, columns, K)
        sides, total = len(grid), torch.zeros((), dtype=q.dtype, device=q.device)
        for side, (name, length, count) in enumerate(zip(self.sides, grid, keys_grid, strict=True)):
            make = functools.partial(distances, length, count, q.device)
            entries = ctx.once(f"distances {length} {count}", make)
            vectors = interpolate_rows(getattr(self, name), 2 * max(length, count) - 1)[entries]  # (length, count, K)
            scores = torch.einsum("bh...lk,lck->bh...lc", q_grid.movedim(2 + side, -2), vectors).movedim(-2, 2 + side)
            shape = [1] * sides
            shape[side] = count
            total = total + scores.unflatten(-1, shape)  # (B, H, rows, columns, 1, columns)
        before = q.shape[2] - math.prod(grid)
        total = total.flatten(2 + sides).flatten(2, 1 + sides)
        return q, F.pad(total, (before, 0, before, 0)) if before else total


class AxialRope(AttentionPosition, sees="itself", called=("2D rotary", "2-D RoPE", "axial rotary")):
    """Rotary positions of an image: in each head, the first half of the channels is rotated by the row of a patch, the
    second half by its column [Su et al. 2021; Heo et al. 2024]. Scores depend on the distance of two patches along each
    side. Grids can have any size; prefix tokens are not rotated."""

    requires: ClassVar[tuple[str, ...]] = (NEEDS[2],)

    base: Positive = 100.0  # lower than for texts, because the sides of a grid are short

    def build(self, site: Site) -> nn.Module:
        if site.width % 4:
            raise ValueError(f"{site.address}: AxialRope needs a head width that is a multiple of 4, got {site.width}")
        return AxialRopeModule(self, site.width)


class AxialRopeModule(RopeModule):
    """Pairs are interleaved; each half of a head uses the frequencies of a head of half the width."""

    def __init__(self, part: AxialRope, head_width: int) -> None:
        super().__init__(Rope(base=part.base, interleaved=True), head_width // 2)
        self.key, self.width = f"axial {self.key}", head_width

    def tables(self, ctx: Context, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos and sin, (1, 1, T, K / 2) each."""
        sides = [torch.arange(side, device=ctx.index.device) for side in layout(ctx)]
        place = torch.cartesian_prod(*sides)  # (N, 2) row and column of each patch
        angle = (place[..., None].float() * self.frequency()).flatten(1)  # (N, K / 2)
        angle = F.pad(angle, (0, 0, ctx.index.shape[-1] - len(place), 0))[None, None]
        return angle.cos().to(dtype), angle.sin().to(dtype)


def distances(length: int, count: int, device: torch.device) -> Tensor:
    """Return the table index (length, count) of each query and key along one side: their distance, measured on the
    finer of the two grids."""
    of_query, of_key = max(count / length, 1.0), max(length / count, 1.0)
    queries = torch.arange(length, device=device)[:, None] * of_query
    return (queries - (torch.arange(count, device=device) + (1.0 - count)) * of_key).long()


def interpolate_rows(table: Tensor, rows: int) -> Tensor:
    """Interpolate a table linearly to a number of rows."""
    if table.shape[0] == rows:
        return table
    return F.interpolate(table.t()[None], size=rows, mode="linear")[0].t()
