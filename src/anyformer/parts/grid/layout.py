"""Tokens that are laid out in a grid, that of an image or of a video, and positions along its sides.

B batch, T tokens, S keys, H heads, K head width, P learned tokens that stand before the grid and have no place in it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.position.absolute import AttentionPosition, AttentionPositionModule, Learned, check_positions
from anyformer.parts.position.rotary import Rope, RopeModule
from anyformer.runtime.context import Context
from anyformer.specs.checks import at_least, positive
from anyformer.specs.part import Part, Site

Sides = tuple[int, ...]  # rows and columns, of a video after its frames


class Grid(NamedTuple):
    """How the tokens of an image are laid out, in reading order."""

    rows: int
    columns: int


class Volume(NamedTuple):
    """How the tokens of a video are laid out, frame by frame."""

    frames: int
    rows: int
    columns: int


Layout = Grid | Volume
NEEDS = {2: "an image", 3: "a video"}  # what a Part with so many sides needs of the embedding


class KeyGrid(NamedTuple):
    """How keys are laid out, where not as the queries are."""

    grid: Layout


def laid_out(*sides: int) -> Layout:
    return Grid(*sides) if len(sides) == 2 else Volume(*sides)


def layout(ctx: Context) -> Layout:
    """The grid that the tokens of a pass end with."""
    found = ctx.extra(Grid) or ctx.extra(Volume)
    assert found is not None, "these tokens are in no grid"
    return found


def on_grid(x: Tensor, grid: Layout, change: Callable[[Tensor], Tensor]) -> Tensor:
    """(B, P + N, C) -> (B, P + M, C): `change` maps the grid (B, C, ...) to another; what stands before it stays."""
    before, x = x[:, : -math.prod(grid)], x[:, -math.prod(grid) :]
    x = change(x.transpose(1, 2).unflatten(2, grid)).flatten(2).transpose(1, 2)
    return torch.cat((before, x), dim=1) if before.shape[1] else x


def as_image(x: Tensor, grid: Layout | None) -> Tensor:
    """(B, N, D) -> (B, D, rows, columns)"""
    assert grid is not None
    return x.transpose(1, 2).unflatten(2, grid).contiguous()


def partition(x: Tensor, size: int) -> Tensor:
    """(B, rows, columns, D) -> (B, N, T, D), windows and tokens in reading order"""
    B, rows, columns, D = x.shape
    cut = x.reshape(B, rows // size, size, columns // size, size, D).transpose(2, 3)
    return cut.reshape(B, -1, size * size, D)


class Down(Part):
    """A step between stages: its module maps x (B, N, D), the grid and the `Context` to the first
    two, the grid coarser or x wider."""

    def coarser(self, grid: Grid) -> Grid:
        """The grid after this step."""
        raise NotImplementedError

    def out_width(self, width: int) -> int:
        raise NotImplementedError


def strided_grid(grid: Layout, stride: Sides) -> Layout:
    """What is left of a grid where one in `stride` is, along each side."""
    return laid_out(*(-(-side // step) for side, step in zip(grid, stride, strict=True))) if stride else grid


def with_stride(ctx: Context, stride: Sides) -> Context:
    """The context of every `stride`-th token along each side of the grid."""

    def make() -> Context:
        grid = layout(ctx)
        after = strided_grid(grid, stride)
        before = ctx.index.shape[-1] - math.prod(grid)
        index = torch.arange(before + math.prod(after), device=ctx.index.device)
        return ctx.replace(after, index=index, positions=index[None], shared={})

    return ctx if math.prod(stride) == 1 else ctx.once(f"stride {stride}", make)


class SeparableLearned(Learned, sees="itself", called=("separable positions",)):
    """Two tables: the vector of a position is the sum of that of its frame and that of its place in the frame, where
    the `length` positions are of so many `frames` [Fan et al. 2021]."""

    frames: int

    def check(self) -> None:
        super().check()
        at_least(self, 1, "frames")
        if self.length % self.frames or self.padding:
            raise ValueError(f"SeparableLearned.length is {self.length}, of {self.frames} frames and without padding")

    def build(self, site: Site) -> nn.Module:
        return SeparableLearnedModule(self, site.width)


class SeparableLearnedModule(nn.Module):
    def __init__(self, part: SeparableLearned, width: int) -> None:
        super().__init__()
        self.length, self.offset = part.length, part.offset
        self.frames = nn.Parameter(torch.zeros(part.frames, width))
        self.places = nn.Parameter(torch.zeros(part.length // part.frames, width))
        self.before = nn.Parameter(torch.zeros(part.offset, width)) if part.offset else None

    def forward(self, positions: Tensor | None = None) -> Tensor:
        """Of these positions; of all, the rows before 0 first, where none are given."""
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
    """A learned vector for each distance in rows and one for each in columns (and in frames), whose products with the
    query join the scores [Li et al. 2022]. Grids other than of `size` take vectors from in between; keys of a coarser
    grid stand at the places they were pooled from."""

    size: Sides

    def check(self) -> None:
        if len(self.size) not in NEEDS or min(self.size) < 1:
            raise ValueError(f"GridVectors.size is {self.size}: rows and columns, of a video after its frames")

    @property
    def requires(self) -> tuple[str, ...]:
        return (NEEDS[len(self.size)],)

    def build(self, site: Site) -> nn.Module:
        return GridVectorsModule(self, site.width)


class GridVectorsModule(AttentionPositionModule):
    def __init__(self, part: GridVectors, head_width: int) -> None:
        super().__init__()
        self.sides = ("frames", "rows", "columns")[-len(part.size) :]
        for name, size in zip(self.sides, part.size, strict=True):
            self.register_parameter(name, nn.Parameter(torch.zeros(2 * size - 1, head_width)))

    def bias(self, q: Tensor, places: Tensor, scale: float, ctx: Context) -> tuple[Tensor, Tensor | None]:
        grid, keys = layout(ctx), ctx.extra(KeyGrid)
        keys_grid = grid if keys is None else keys.grid
        q_grid = q[:, :, -math.prod(grid) :].unflatten(2, grid)  # (B, H, rows, columns, K)
        sides, total = len(grid), torch.zeros((), dtype=q.dtype, device=q.device)
        for side, (name, length, count) in enumerate(zip(self.sides, grid, keys_grid, strict=True)):
            make = functools.partial(distances, length, count, q.device)
            entries = ctx.once(f"distances {length} {count}", make)
            vectors = interpolate_rows(getattr(self, name), 2 * max(length, count) - 1)[entries]  # (length, count, K)
            found = torch.einsum("bh...lk,lck->bh...lc", q_grid.movedim(2 + side, -2), vectors).movedim(-2, 2 + side)
            shape = [1] * sides
            shape[side] = count
            total = total + found.unflatten(-1, shape)  # (B, H, rows, columns, 1, columns)
        before = q.shape[2] - math.prod(grid)
        total = total.flatten(2 + sides).flatten(2, 1 + sides)
        return q, F.pad(total, (before, 0, before, 0)) if before else total


class AxialRope(AttentionPosition, sees="itself", called=("2D rotary", "2-D RoPE", "axial rotary")):
    """Rotary positions of an image: in each head the first half of the channels turns by the row of a patch, the second
    half by its column [Su et al. 2021; Heo et al. 2024]. Scores depend on how far apart two patches are along each
    side, grids can have any size, and tokens before the grid do not turn."""

    requires: ClassVar[tuple[str, ...]] = (NEEDS[2],)

    base: float = 100.0  # lower than that of texts: the sides of a grid are short

    def check(self) -> None:
        positive(self, "base")

    def build(self, site: Site) -> nn.Module:
        if site.width % 4:
            raise ValueError(
                f"{site.address}: AxialRope turns pairs of half a head, and {site.width} is no multiple of 4"
            )
        return AxialRopeModule(self, site.width)


class AxialRopeModule(RopeModule):
    """Pairs are neighbours; each half of a head has the frequencies of a head half as wide."""

    def __init__(self, part: AxialRope, head_width: int) -> None:
        super().__init__(Rope(base=part.base, interleaved=True), head_width // 2)
        self.key, self.width = f"axial {self.key}", head_width

    def tables(self, ctx: Context, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin, (1, 1, T, K / 2)."""
        sides = [torch.arange(side, device=ctx.index.device) for side in layout(ctx)]
        place = torch.cartesian_prod(*sides)  # (N, 2) row and column of each patch
        angle = (place[..., None].float() * self.frequency()).flatten(1)  # (N, K / 2)
        angle = F.pad(angle, (0, 0, ctx.index.shape[-1] - len(place), 0))[None, None]
        return angle.cos().to(dtype), angle.sin().to(dtype)


def distances(length: int, count: int, device: torch.device) -> Tensor:
    """(length, count) the entry of each query and key along one side: how far apart they are where both grids are as
    fine as the finer one."""
    of_query, of_key = max(count / length, 1.0), max(length / count, 1.0)
    queries = torch.arange(length, device=device)[:, None] * of_query
    return (queries - (torch.arange(count, device=device) + (1.0 - count)) * of_key).long()


def interpolate_rows(table: Tensor, rows: int) -> Tensor:
    """A table of so many rows, from in between those of another."""
    if table.shape[0] == rows:
        return table
    return F.interpolate(table.t()[None], size=rows, mode="linear")[0].t()
