"""Grids of image and video tokens.

B batch, N tokens of the grid, P prefix tokens before the grid, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.runtime.context import Context

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
