"""Image and video embeddings: pixels to a grid of patches.

B batch, C channels, N patches, P prefix tokens, D width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.linear import cast_for_autocast
from anyformer.parts.base import Embedding, PartModule
from anyformer.parts.computed import places
from anyformer.parts.embedding.drop_token import drop_tokens
from anyformer.parts.embedding.prefix import PrefixTokens
from anyformer.parts.norm import Norm
from anyformer.parts.position.absolute import Learned, Sinusoidal2D, Sinusoidal2DModule
from anyformer.runtime.context import Context
from anyformer.runtime.grid import NEEDS, Grid, Layout, Sides, laid_out
from anyformer.runtime.inputs import Kind, check_shape, hides_nothing
from anyformer.runtime.state import State
from anyformer.specs.field_types import Chance
from anyformer.specs.messages import amount
from anyformer.specs.part import Site

Size = tuple[int, int]  # rows, columns


class PatchEmbedding(Embedding, sees="all", called=("ViT", "patchify")):
    """One vector per image patch, after the learned tokens of `prefix` [Dosovitskiy et al. 2021]. If positions are
    learned, an image whose size is not `image_size` needs `interpolate_pos_encoding=True`. `attention_mask` hides
    tokens; Parts that need a grid do not support it."""

    inputs: ClassVar[tuple[str, ...]] = (
        "pixel_values",
        "bool_masked_pos",
        "interpolate_pos_encoding",
        "attention_mask",
    )
    input_kinds: ClassVar[Mapping[str, Kind]] = {"bool_masked_pos": "mask", "interpolate_pos_encoding": "flag"}
    causal_alternative: ClassVar[str] = "TextEmbedding(tokens=...)"

    image_size: Size
    patch_size: Size
    channels: int = 3
    pad: bool = True  # zero-pad images to a multiple of the patch size; False: ignore the remaining pixels
    kernel: Size | None = None  # kernel size of the projection if patches overlap (MViT); None: `patch_size`
    edge: Size = (0, 0)  # zero padding of the projection on each side (MViT)
    bias: bool = True  # bias of the projection
    norm: Norm | None = None  # of the patch vectors
    mask_token: bool = False  # a learned vector replaces the patches that `bool_masked_pos` hides
    prefix: tuple[PrefixTokens, ...] = ()  # learned tokens before the patches
    # one position per patch of `image_size`; the `offset` rows of Learned belong to prefix tokens with a position
    position: Learned | Sinusoidal2D | None = None
    out_norm: Norm | None = None  # of all tokens after positions are added (CLIP)
    dropout: Chance = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.prefix, int):  # as in earlier versions
            count = max(self.prefix, 1)
            raise ValueError(
                f"PatchEmbedding.prefix: {self.prefix} is not a tuple; write prefix=(PrefixTokens(count={count}),) or, "
                f'in JSON, [{{"kind": "PrefixTokens", "count": {count}}}]; without prefix tokens: () or []'
            )
        super().__post_init__()

    @property
    def gives(self) -> tuple[str, ...]:
        features = {"an image": True, "a grid": not self.num_prefix, "a second token": self.num_prefix > 1}
        return tuple(name for name, given in {**features, "a mask token": self.mask_token}.items() if given)

    @property
    def num_prefix(self) -> int:
        return sum(each.count for each in self.prefix)

    # one entry per dimension: (height, width), for videos (frames, height, width)

    @property
    def sides(self) -> Sides:
        return self.image_size

    @property
    def steps(self) -> Sides:
        return self.patch_size

    @property
    def kernels(self) -> Sides:
        return self.kernel or self.patch_size

    @property
    def edges(self) -> Sides:
        return self.edge

    @property
    def token_drop(self) -> float:
        """The share of patches that is dropped in training."""
        return 0.0

    @property
    def grid(self) -> Layout:
        sides = zip(self.sides, self.steps, self.kernels, self.edges, strict=True)
        return laid_out(*((side + 2 * edge - size) // step + 1 for side, step, size, edge in sides))

    def row(self, length: int, width: int) -> dict[str, tuple[int, ...]]:
        return {"pixel_values": (self.channels, *self.sides)}

    def vectors(self, length: int) -> int:
        if not self.pad:
            return math.prod(self.grid) + self.num_prefix
        return math.prod(-(-side // step) for side, step in zip(self.sides, self.steps, strict=True)) + self.num_prefix

    def check(self) -> None:
        if min(*self.steps, *self.kernels, self.channels) < 1 or min(self.edges) < 0 or min(self.grid) < 1:
            raise ValueError(f"no patch of size {self.kernels} fits {NEEDS[len(self.sides)]} of size {self.sides}")
        if self.pad and (self.kernels != self.steps or any(self.edges)):
            raise ValueError(f"{type(self).__name__}.pad: patches that overlap cannot be padded; set pad=False")
        if self.position is not None and self.position.length != math.prod(self.grid):
            raise ValueError(f"a grid of {self.grid} patches does not match {self.position.length} positions")
        if isinstance(self.position, Sinusoidal2D):
            if (self.position.rows, self.position.columns, self.position.prefix) != (*self.grid, 0):
                raise ValueError(f"PatchEmbedding.position must have the patch grid's size {self.grid} and prefix=0")
        rows = self.position.offset if isinstance(self.position, Learned) else 0
        count = sum(each.count for each in self.prefix if each.position)
        if self.position is not None and rows != count:
            fix = f"set offset={count} or " if isinstance(self.position, Learned) else "set "
            raise ValueError(
                f"PatchEmbedding.position has {amount(rows, 'row')} for {amount(count, 'prefix token')} with a "
                f"position; {fix}PrefixTokens(position=False)"
            )

    @classmethod
    def upgrade(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Earlier versions had a number of prefix tokens; they had positions if Learned had an `offset`."""
        if type(count := data.get("prefix")) is int:
            position = data.get("position")
            without = {"position": False} if isinstance(position, dict) and not position.get("offset") else {}
            data["prefix"] = [{"kind": "PrefixTokens", "count": count, **without}] if count else []
        return data


class PatchConvolution(nn.Conv2d):
    """A 2-D convolution. If its patches do not overlap, a GPU computes it as one matrix product, which is faster."""

    def forward(self, pixels: Tensor) -> Tensor:
        if not pixels.is_cuda or self.stride != self.kernel_size or self.padding != (0, 0):
            return super().forward(pixels)
        height, width = self.kernel_size
        rows, columns = pixels.shape[2] // height, pixels.shape[3] // width
        x = cast_for_autocast(pixels)[:, :, : rows * height, : columns * width]
        x = x.unflatten(3, (columns, width)).unflatten(2, (rows, height))  # (B, C, rows, height, columns, width)
        x = x.permute(0, 2, 4, 1, 3, 5).flatten(3)  # (B, rows, columns, C height width)
        return F.linear(x, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


class PatchEmbeddingModule(PartModule, of=PatchEmbedding):
    def __init__(self, part: PatchEmbedding, site: Site) -> None:
        super().__init__()
        self.part = part
        kind: Any = {2: PatchConvolution, 3: nn.Conv3d}[len(part.sides)]
        self.patch = kind(part.channels, site.width, part.kernels, part.steps, part.edges, bias=part.bias)
        self.norm = part.norm.build(site.child("norm")) if part.norm else None
        self.mask_token = nn.Parameter(torch.zeros(site.width)) if part.mask_token else None
        self.prefix: Any = nn.ModuleList(each.build(site.child(f"prefix.{i}")) for i, each in enumerate(part.prefix))
        self.all_positioned = all(each.position for each in part.prefix)
        self.position: Any = part.position.build(site.child("position")) if part.position else None
        self.out_norm = part.out_norm.build(site.child("out_norm")) if part.out_norm else None

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        part, pixels, masked = self.part, inputs.get("pixel_values"), inputs.get("bool_masked_pos")
        if pixels is None or pixels.dim() != 2 + len(part.sides) or pixels.shape[1] != part.channels:
            shape = None if pixels is None else tuple(pixels.shape)
            names = "height, width" if len(part.sides) == 2 else "frames, height, width"
            raise ValueError(f"pixel_values must be (batch, {part.channels} channels, {names}), got {shape}")
        missing = [-side % step for side, step in zip(pixels.shape[2:], part.steps, strict=True)]
        if any(missing) and part.pad:
            pixels = F.pad(pixels, [amount for each in reversed(missing) for amount in (0, each)])
        sides = zip(pixels.shape[2:], part.kernels, part.edges, strict=True)
        if any(side + 2 * edge < size for side, size, edge in sides):
            raise ValueError(f"{NEEDS[len(part.sides)]} of {tuple(pixels.shape[2:])} is smaller than a patch")
        x = self.patch(pixels)
        grid = laid_out(*x.shape[2:])
        x = x.flatten(2).transpose(1, 2)  # (B, N, D)
        if self.norm is not None:
            x = self.norm(x)
        if masked is not None:
            if self.mask_token is None:
                raise ValueError("bool_masked_pos: this model has no mask token; build it with mask_token=True")
            check_shape("bool_masked_pos", masked, tuple(x.shape[:2]))
            x = torch.where(masked.bool()[..., None], self.mask_token, x)
        table: Tensor | None = None
        if isinstance(self.position, Sinusoidal2DModule):
            assert isinstance(grid, Grid), "check() allows Sinusoidal2D only for images"
            index = places(x.shape[1], x.device)
            x = x + (self.position(index) if grid == self.part.grid else self.position.table_for(grid)).to(x.dtype)
        elif self.position is not None:
            table = self.positions(self.position(), grid, tuple(pixels.shape[2:]), inputs)
            table = table if self.all_positioned else self.with_zero_rows(table)
        if self.prefix:
            tokens = [each.weight if table is not None else each.weight.to(x.dtype) for each in self.prefix]
            x = torch.cat((*(each.expand(x.shape[0], -1, -1) for each in tokens), x), dim=1)
        if table is not None:
            x = x + table
        if self.out_norm is not None:
            x = self.out_norm(x)
        if self.training and self.part.dropout:
            x = F.dropout(x, self.part.dropout)
        index, mask = places(x.shape[1], x.device), inputs.get("attention_mask")
        check_shape("attention_mask", mask, tuple(x.shape[:2]))
        is_token = None if mask is None or hides_nothing(mask) else mask.bool()
        ctx = Context(index=index, positions=index[None], is_token=is_token, extras=(grid,))
        share = part.token_drop
        return drop_tokens(x, ctx, share) if self.training and share else (x, ctx)

    def with_zero_rows(self, table: Tensor) -> Tensor:
        """Insert a row of zeros into a table for each prefix token without a position."""
        rows, first = [], 0
        for each in self.part.prefix:
            last = first + each.count if each.position else first
            rows.append(table[first:last] if each.position else table.new_zeros(each.count, table.shape[1]))
            first = last
        return torch.cat((*rows, table[first:]))

    def positions(self, table: Tensor, grid: Layout, size: tuple[int, ...], inputs: dict[str, Any]) -> Tensor:
        """Return the position vectors of a grid, rows of the prefix first; `size` is the input's size in pixels."""
        count = math.prod(self.part.grid)
        position = self.part.position
        assert isinstance(position, Learned)
        if position.always_resized or inputs.get("interpolate_pos_encoding", False):
            if grid == self.part.grid:
                return table
            image = table[-count:].float().t().unflatten(1, self.part.grid)[None]  # (1, D, rows, columns)
            resized = F.interpolate(image, size=grid, mode="bicubic", antialias=position.antialias)
            return torch.cat((table[:-count], resized[0].flatten(1).t().to(table.dtype)))
        if math.prod(grid) != count or (size != self.part.sides and not self.part.pad):
            fix = "; give interpolate_pos_encoding=True" if "interpolate_pos_encoding" in self.part.inputs else ""
            raise ValueError(
                f"{NEEDS[len(grid)]} of {size} pixels makes {tuple(grid)} patches, but positions were learned for "
                f"{self.part.sides} pixels and {tuple(self.part.grid)} patches{fix}"
            )
        return table


class VideoEmbedding(PatchEmbedding, sees="all", called=("tubelets", "space-time patches")):
    """One vector per space-time patch of a video; `pixel_values` is (batch, channels, frames, height, width)."""

    inputs: ClassVar[tuple[str, ...]] = ("pixel_values", "bool_masked_pos")
    input_kinds: ClassVar[Mapping[str, Kind]] = {"bool_masked_pos": "mask"}

    frames: int
    frame_step: int = 1  # frames per patch (the projection's stride over time)
    frame_kernel: int | None = None  # kernel size over time if patches overlap; None: `frame_step`
    frame_edge: int = 0  # zero padding over time, on each side
    token_drop: Chance = 0.0  # share of patches dropped in training (DropToken); then no Part can use the grid

    def check(self) -> None:
        super().check()
        if isinstance(self.position, Learned) and self.position.always_resized:
            raise ValueError("VideoEmbedding.position: only positions of images can be resized; use Learned")
        if self.token_drop and (self.mask_token or self.prefix):
            raise ValueError("VideoEmbedding.token_drop cannot be used with mask_token or prefix")

    @property
    def gives(self) -> tuple[str, ...]:
        if self.token_drop:
            return ()
        return ("a video", *(("a mask token",) if self.mask_token else ()))

    @property
    def sides(self) -> Sides:
        return (self.frames, *self.image_size)

    @property
    def steps(self) -> Sides:
        return (self.frame_step, *self.patch_size)

    @property
    def kernels(self) -> Sides:
        return (self.frame_kernel or self.frame_step, *(self.kernel or self.patch_size))

    @property
    def edges(self) -> Sides:
        return (self.frame_edge, *self.edge)
