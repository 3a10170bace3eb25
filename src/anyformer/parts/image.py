"""Images: pixels to a grid of patches, coarser grids from finer ones, and patches back to pixels.

B batch, C channels, N patches, D width.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.context import Context
from anyformer.part import Part, Site
from anyformer.parts.embed import Embedding
from anyformer.parts.head import Head, HeadModule, Said
from anyformer.parts.labels import Loss
from anyformer.parts.norm import Norm
from anyformer.parts.position import Learned, LearnedModule
from anyformer.parts.window import Grid
from anyformer.state import State

Size = tuple[int, int]  # rows, columns


class PatchEmbedding(Embedding, sees="all"):
    """One vector a patch [Dosovitskiy et al. 2021]. An image that is no multiple of the patch is padded with zeros; one
    of another size than `image_size` needs `interpolate_pos_encoding=True` where positions are learned. All of an image
    is read at once."""

    inputs: ClassVar[tuple[str, ...]] = ("pixel_values", "bool_masked_pos", "interpolate_pos_encoding")

    image_size: Size
    patch_size: Size
    channels: int = 3
    norm: Norm | None = None
    mask_token: bool = False  # a learned vector stands for patches that `bool_masked_pos` hides
    position: Learned | None = None  # one a patch of `image_size`
    dropout: float = 0.0

    @property
    def instead(self) -> str:
        return "TextEmbedding(tokens=...)"

    @property
    def gives(self) -> tuple[str, ...]:
        return ("a grid", *(("a mask token",) if self.mask_token else ()))

    @property
    def grid(self) -> Grid:
        return Grid(self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1])

    def check(self) -> None:
        if min(*self.patch_size, self.channels, *self.grid) < 1:
            raise ValueError(f"no patch of {self.patch_size} fits an image of {self.image_size}")
        if self.position is not None and self.position.length != self.grid[0] * self.grid[1]:
            raise ValueError(f"a grid of {self.grid} patches cannot have {self.position.length} positions")

    def build(self, site: Site) -> nn.Module:
        return PatchEmbeddingModule(self, site)


class PatchEmbeddingModule(nn.Module):
    def __init__(self, part: PatchEmbedding, site: Site) -> None:
        super().__init__()
        self.part = part
        self.patch = nn.Conv2d(part.channels, site.width, part.patch_size, stride=part.patch_size)
        self.norm = part.norm.build(site.child("norm")) if part.norm else None
        self.mask_token = nn.Parameter(torch.zeros(site.width)) if part.mask_token else None
        self.position = part.position.build(site.child("position")) if part.position else None

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        pixels, masked = inputs.get("pixel_values"), inputs.get("bool_masked_pos")
        if pixels is None or pixels.dim() != 4 or pixels.shape[1] != self.part.channels:
            found = None if pixels is None else tuple(pixels.shape)
            raise ValueError(f"pixel_values is (batch, {self.part.channels} channels, height, width), got {found}")
        below, right = (-side % step for side, step in zip(pixels.shape[2:], self.part.patch_size, strict=True))
        if below or right:
            pixels = F.pad(pixels, (0, right, 0, below))
        x = self.patch(pixels)
        grid = Grid(x.shape[2], x.shape[3])
        x = x.flatten(2).transpose(1, 2)  # (B, N, D)
        if self.norm is not None:
            x = self.norm(x)
        if masked is not None:
            if self.mask_token is None:
                raise ValueError("this model has no mask token: bool_masked_pos cannot be honoured")
            x = torch.where(masked.bool()[..., None], self.mask_token, x)
        if self.position is not None:
            x = x + self.positions(grid, bool(inputs.get("interpolate_pos_encoding", False)))
        if self.training and self.part.dropout:
            x = F.dropout(x, self.part.dropout)
        index = torch.arange(x.shape[1], device=x.device)
        return x, Context(index=index, positions=index[None], extras=(grid,))

    def positions(self, grid: Grid, interpolate: bool) -> Tensor:
        """(N, D) for a grid of any size."""
        assert isinstance(self.position, LearnedModule)
        table = self.position(torch.arange(self.position.num_embeddings, device=self.position.weight.device))
        if interpolate and grid != self.part.grid:
            image = table.float().t().unflatten(1, self.part.grid)[None]  # (1, D, rows, columns)
            return F.interpolate(image, size=grid, mode="bicubic")[0].flatten(1).t().to(table.dtype)
        if grid[0] * grid[1] != table.shape[0]:
            raise ValueError(
                f"the image makes {grid} patches and positions were learned for {self.part.grid}; "
                "give interpolate_pos_encoding=True"
            )
        return table


class Merge(Part, sees="all"):
    """Each 2 x 2 patches become one, twice as wide [Liu et al. 2021]. An odd grid is padded with zeros."""

    widen: ClassVar[int] = 2

    pre_norm: Norm | None = None

    def build(self, site: Site) -> nn.Module:
        return MergeModule(self, site)


class MergeModule(nn.Module):
    def __init__(self, part: Merge, site: Site) -> None:
        super().__init__()
        self.pre_norm = part.pre_norm.build(site.child("pre_norm", width=4 * site.width)) if part.pre_norm else None
        self.project = nn.Linear(4 * site.width, part.widen * site.width, bias=False)

    def forward(self, x: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        x = x.unflatten(1, grid)
        if grid[0] % 2 or grid[1] % 2:
            x = F.pad(x, (0, 0, 0, grid[1] % 2, 0, grid[0] % 2))
        grid = Grid(x.shape[1] // 2, x.shape[2] // 2)
        # (B, rows, 2, columns, 2, D) -> (B, N, 4 D), the upper left patch first, then the one below it
        x = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2)
        return self.project(x if self.pre_norm is None else self.pre_norm(x)), grid


class PixelHead(Head):
    """Each token of the last grid draws its `stride` x `stride` pixels; the loss is the mean distance to the pixels of
    the patches that `bool_masked_pos` hid [Xie et al. 2022]."""

    needs: ClassVar[tuple[str, ...]] = ("a grid", "a mask token")

    channels: int
    stride: int
    patch_size: Size

    def build(self, site: Site) -> nn.Module:
        return PixelModule(self, site.width)


class PixelModule(HeadModule):
    def __init__(self, part: PixelHead, width: int) -> None:
        super().__init__()
        self.part = part
        self.out = nn.Linear(width, part.stride**2 * part.channels)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Said:
        grid = ctx.extra(Grid)
        assert grid is not None
        return {"reconstruction": F.pixel_shuffle(self.out(x).transpose(1, 2).unflatten(2, grid), self.part.stride)}

    def judge(self, said: Said, ctx: Context, inputs: dict[str, Any]) -> dict[str, Loss]:
        image, pixels, masked = said["reconstruction"], inputs["pixel_values"], inputs.get("bool_masked_pos")
        if masked is None:
            return {}
        if image.shape != pixels.shape:
            drawn, given = tuple(image.shape[2:]), tuple(pixels.shape[2:])
            raise ValueError(f"no loss: the head draws {drawn} pixels (encoder_stride), the image has {given}")
        (height, width), (down, right) = pixels.shape[2:], self.part.patch_size
        hidden = masked.view(-1, -(-height // down), -(-width // right))
        hidden = hidden.repeat_interleave(down, 1).repeat_interleave(right, 2)[:, None, :height, :width]
        return {"loss": Loss(((pixels - image).abs() * hidden).sum() / self.part.channels, hidden.sum() + 1e-5)}
