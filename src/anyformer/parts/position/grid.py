"""Positions on grids of image and video tokens.

B batch, T tokens, N tokens of the grid, H heads, K head width.
"""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.base import PartModule
from anyformer.parts.computed import Computed
from anyformer.parts.position.absolute import AttentionPosition, Learned, check_positions
from anyformer.parts.position.bias import AttentionPositionModule, HeadwisePosition
from anyformer.parts.position.rotary import Rope, RopeModule
from anyformer.runtime.context import Context
from anyformer.runtime.grid import NEEDS, Grid, KeyGrid, Sides, layout
from anyformer.specs.field_types import Count, Natural, Positive
from anyformer.specs.part import Site


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


class AxialRopeModule(RopeModule, of=AxialRope):
    """Pairs are interleaved; each half of a head uses the frequencies of a head of half the width."""

    def __init__(self, part: AxialRope, site: Site) -> None:
        if site.width % 4:
            raise ValueError(f"{site.address}: AxialRope needs a head width that is a multiple of 4, got {site.width}")
        super().__init__(Rope(base=part.base, interleaved=True), site.width // 2)
        self.key, self.width = f"axial {self.key}", site.width

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


class GridBias(HeadwisePosition, sees="itself", called=("Swin bias", "2D relative bias")):
    """One learned scalar per head and per offset in rows and columns, for grids up to `size` x `size`
    [Liu et al. 2021]."""

    requires: ClassVar[tuple[str, ...]] = ("a grid",)

    size: Count


class ContinuousGridBias(GridBias, sees="itself", called=("Swin V2 bias", "log-spaced bias")):
    """A small MLP of the logarithms of both offsets computes the scalars, so that they extend to windows of other sizes
    than in pretraining [Liu et al. 2022]. The scalars are between 0 and `most`."""

    learned: Natural = 0  # window size in pretraining; 0: `size`
    width: Count = 512  # inner width of the MLP
    most: float = 16.0

    def check(self) -> None:
        if self.learned == 1:
            raise ValueError("ContinuousGridBias.learned is 1: a window of one token has no offsets to learn from")


class GridBiasModule(AttentionPositionModule, of=GridBias):
    def __init__(self, part: GridBias, site: Site) -> None:
        super().__init__()
        self.size = part.size
        self.whole = Computed(lambda: offsets(part.size, part.size, part.size))  # of windows of the largest size
        self.fill(part)

    def fill(self, part: Any) -> None:
        self.weight = nn.Parameter(torch.zeros((2 * part.size - 1) ** 2, part.num_heads))

    def table(self) -> Tensor:
        """(offsets, H)"""
        return self.weight

    def bias(self, q: Tensor, places: Tensor, scale: float, ctx: Context) -> tuple[Tensor, Tensor | None]:
        return q, F.embedding(self.rows(ctx), self.table()).permute(2, 0, 1).contiguous()[None]  # (1, H, T, T)

    def rows(self, ctx: Context) -> Tensor:
        """Return the row of the table for each query and key, (T, T)."""
        grid = ctx.extra(Grid)
        if grid is None or max(grid) > self.size:
            size = "no grid" if grid is None else f"a grid of {grid.rows} x {grid.columns}"
            raise ValueError(f"GridBias needs a grid of at most {self.size} x {self.size}, got {size}")
        if min(grid) == self.size:
            return self.whole()
        make = functools.partial(offsets, *grid, self.size, ctx.index.device)
        return ctx.once(f"offsets {self.size}", make)


def offsets(rows: int, columns: int, size: int, device: torch.device | None = None) -> Tensor:
    """Return the table row of the offset between each query and key, (T, T); the table covers `size` x `size`."""
    index = torch.arange(rows * columns, device=device)
    down, right = ((at[:, None] - at) + size - 1 for at in (index // columns, index % columns))
    return down * (2 * size - 1) + right


class ContinuousGridBiasModule(GridBiasModule, of=ContinuousGridBias):
    def fill(self, part: Any) -> None:
        self.up, self.down = nn.Linear(2, part.width), nn.Linear(part.width, part.num_heads, bias=False)
        self.most, self.offsets = part.most, Computed(lambda: logarithms(part.size, part.learned or part.size))

    def table(self) -> Tensor:
        offsets = self.offsets().to(self.up.weight.dtype)
        return self.most * self.down(F.relu(self.up(offsets))).sigmoid()


def logarithms(size: int, learned: int) -> Tensor:
    """Return the log-spaced row and column of every offset, ((2 size - 1)^2, 2). The largest offset of a window of size
    `learned` is about 1."""
    line = 8 * torch.arange(1 - size, size, dtype=torch.float32) / max(learned - 1, 1)
    line = line.sign() * (line.abs() + 1).log2() / math.log2(8)
    return torch.cartesian_prod(line, line).view(-1, 2)
