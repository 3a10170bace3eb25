"""Patch merging: 2 x 2 patches of a grid become one [Liu et al. 2021].

B batch, N patches, D width.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.base import PartModule
from anyformer.parts.norm import Norm
from anyformer.runtime.context import Context
from anyformer.runtime.grid import Grid
from anyformer.specs.part import Part, Site


class Down(Part, abstract=True):
    """Base class of steps between stages. The module maps x (B, N, D), its grid and the `Context` to a wider x or a
    coarser grid, and returns both."""

    def coarser(self, grid: Grid) -> Grid:
        """Return the grid after this step."""
        raise NotImplementedError

    def out_width(self, width: int) -> int:
        raise NotImplementedError


class Merge(Down, sees="all", called=("patch merging",)):
    """Merges 2 x 2 patches into one of twice the width [Liu et al. 2021]. A grid with odd sides is zero-padded."""

    pre_norm: Norm | None = None  # of the four concatenated patches
    post_norm: Norm | None = None  # of the merged patches (Swin V2)

    def coarser(self, grid: Grid) -> Grid:
        return Grid(-(-grid.rows // 2), -(-grid.columns // 2))

    def out_width(self, width: int) -> int:
        return 2 * width


class MergeModule(PartModule, of=Merge):
    def __init__(self, part: Merge, site: Site) -> None:
        super().__init__()
        self.pre_norm = part.pre_norm.build(site.child("pre_norm", width=4 * site.width)) if part.pre_norm else None
        self.project = nn.Linear(4 * site.width, part.out_width(site.width), bias=False)
        after = site.child("post_norm", width=part.out_width(site.width))
        self.post_norm = part.post_norm.build(after) if part.post_norm else None

    def forward(self, x: Tensor, grid: Grid, ctx: Context) -> tuple[Tensor, Grid]:
        x = x.unflatten(1, grid)
        if grid[0] % 2 or grid[1] % 2:
            x = F.pad(x, (0, 0, 0, grid[1] % 2, 0, grid[0] % 2))
        grid = Grid(x.shape[1] // 2, x.shape[2] // 2)
        # (B, rows, 2, columns, 2, D) -> (B, N, 4 D), the upper left patch first, then the patch below it
        x = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2)
        x = self.project(x if self.pre_norm is None else self.pre_norm(x))
        return (x if self.post_norm is None else self.post_norm(x)), grid
