"""Convolutions over the grid of an image.

Tokens in row-major order (B, N, D) are an image in channels-last format, the fastest for convolutions, so no copies
are needed. B batch, N pixels of the grid, D width.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.base import PartModule
from anyformer.parts.computed import places
from anyformer.parts.grid.merge import Down
from anyformer.parts.init import Normal
from anyformer.parts.norm import BatchNorm, Norm
from anyformer.parts.op import Op, Reshaping
from anyformer.runtime.context import Context
from anyformer.runtime.grid import Grid, Sides, as_image
from anyformer.specs.field_types import Count, Odd
from anyformer.specs.part import Part, Site, walk


class GridLayer(Part, abstract=True):
    """Base class of layers on a grid. The module maps x (B, N, inputs), its grid and the `Context` to a new x and
    grid."""

    @property
    def stride(self) -> int:
        """Factor by which each side of the grid shrinks."""
        return 1

    def coarser(self, grid: Grid) -> Grid:
        return Grid(*(-(-side // self.stride) for side in grid))

    def out_width(self, width: int, default: int | None = None) -> int:
        """Return the output channels for `width` input channels; `default`: the width of the surrounding block."""
        return width

    def build(self, site: Site, inputs: int | None = None) -> nn.Module:
        raise NotImplementedError


class Convolution(GridLayer, sees="all"):
    """A zero-padded 2-D convolution over the grid, then a norm and an activation."""

    kernel: Odd = 3
    width: Count | None = None  # output channels; default: the width of the surrounding block
    stride: Count = 1
    bias: bool = False
    norm: Norm | None = BatchNorm()
    activation: Activation = "relu"

    def out_width(self, width: int, default: int | None = None) -> int:
        return self.width or default or width

    def build(self, site: Site, inputs: int | None = None) -> nn.Module:
        return ConvolutionLayer(self, inputs or site.width, site)


class ConvolutionLayer(nn.Module):
    """Maps x (B, N, inputs) and its grid to a new x and grid."""

    def __init__(self, part: Convolution, inputs: int, site: Site) -> None:
        super().__init__()
        width = part.width or site.width
        self.taps = ChannelsLastConv(inputs, width, part)
        self.norm = part.norm.build(site.child("norm", width=width)) if part.norm else None
        self.activation = ACTIVATIONS[part.activation]

    def forward(self, x: Tensor, grid: Grid, ctx: Context | None = None) -> tuple[Tensor, Grid]:
        y = self.taps(x.unflatten(1, grid))
        x, grid = y.flatten(1, 2), Grid(y.shape[1], y.shape[2])
        return self.activation(x if self.norm is None else self.norm(x)), grid


class ChannelsLastConv(nn.Module):
    """A convolution whose weight (outputs, rows, columns, inputs) is in channels-last format, like the pixels;
    otherwise convolution libraries would transpose it in every pass."""

    def __init__(self, inputs: int, outputs: int, part: Convolution) -> None:
        super().__init__()
        self.kernel, self.stride = part.kernel, part.stride
        self.weight = nn.Parameter(torch.empty(outputs, part.kernel, part.kernel, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if part.bias else None
        self.starts = {"weight": Normal(std=math.sqrt(2 / (outputs * part.kernel**2)))}  # by outputs [He et al. 2015]

    def forward(self, x: Tensor) -> Tensor:
        """(B, rows, columns, inputs) -> (B, new rows, new columns, outputs)"""
        if self.kernel == 1:  # a matrix product
            return F.linear(x[:, :: self.stride, :: self.stride], self.weight.flatten(1), self.bias)
        pixels, weight = x.permute(0, 3, 1, 2), self.weight.permute(0, 3, 1, 2)
        return F.conv2d(pixels, weight, self.bias, self.stride, self.kernel // 2).permute(0, 2, 3, 1)


class OpLayer(GridLayer, sees="all", called=("attention in a bottleneck",)):
    """Any op on the grid instead of a convolution, then a norm and an activation. Used in the bottlenecks of LR-Net [Hu
    et al. 2019], stand-alone self-attention [Ramachandran et al. 2019] and HaloNet [Vaswani et al. 2021]. The op's
    stride and `pool` make the grid coarser."""

    requires: ClassVar[tuple[str, ...]] = ("a grid",)

    op: Op
    pool: Count = 1  # average `pool` x `pool` pixels after the op
    norm: Norm | None = BatchNorm()
    activation: Activation = "relu"

    def check(self) -> None:
        if len({1, *self.strides}) > 2 or len({*self.strides}) > 1:
            raise ValueError(f"OpLayer.op has the stride {self.strides}; rows and columns need the same stride")
        for path, part in walk(self.op, "op"):
            if (sharing := part.layer_sharing) is not None:
                raise ValueError(
                    f"OpLayer.{path}: layers share values of the first layer, but grids may differ; set {sharing.off}"
                )

    @property
    def strides(self) -> Sides:
        return self.op.stride if isinstance(self.op, Reshaping) else ()

    @property
    def stride(self) -> int:
        return self.pool * (self.strides[0] if self.strides else 1)

    def out_width(self, width: int, default: int | None = None) -> int:
        return self.op.out_width(width)

    def build(self, site: Site, inputs: int | None = None) -> nn.Module:
        return OpLayerModule(self, inputs or site.width, site)


class OpLayerModule(nn.Module):
    def __init__(self, part: OpLayer, inputs: int, site: Site) -> None:
        super().__init__()
        self.part, self.op = part, part.op.build(site.child("op", width=inputs))
        self.norm = part.norm.build(site.child("norm", width=part.out_width(inputs))) if part.norm else None
        self.activation = ACTIVATIONS[part.activation]

    def forward(self, x: Tensor, grid: Grid, ctx: Context) -> tuple[Tensor, Grid]:
        index, pool = places(x.shape[1], x.device), self.part.pool
        x = self.op(x, ctx.replace(grid, index=index, positions=index[None], bias=None, shared={}))
        if pool > 1:  # incomplete windows at the edges are averaged too
            image = as_image(x, self.part.replace(pool=1).coarser(grid))
            x = F.avg_pool2d(image, pool, ceil_mode=True).flatten(2).transpose(1, 2)
        return self.activation(x if self.norm is None else self.norm(x)), self.part.coarser(grid)


class ConvolutionChain(PartModule):
    """A sequence of grid layers; the last has the width of the surrounding block."""

    def __init__(self, layers: tuple[GridLayer, ...], inputs: int, site: Site) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for i, layer in enumerate(layers):
            self.layers.append(layer.build(site.child(f"layers.{i}"), inputs))
            inputs = layer.out_width(inputs, site.width)

    def run(self, x: Tensor, grid: Grid, ctx: Context | None = None) -> tuple[Tensor, Grid]:
        for layer in self.layers:
            x, grid = layer(x, grid, ctx)
        return x, grid


def check_layers(part: Any) -> None:
    last = part.layers[-1] if part.layers else None
    if not isinstance(last, Convolution) or last.width is not None:
        kind = type(part).__name__
        raise ValueError(f"{kind}.layers: the last layer must be a Convolution without a width")


class Convolutions(Op, sees="all", called=("ResNet", "bottleneck")):
    """A sequence of convolutions that keeps the grid: two of 3 x 3, or a narrow one between two of 1 x 1 (bottleneck)
    [He et al. 2016]."""

    requires: ClassVar[tuple[str, ...]] = ("a grid",)
    causal_alternative: ClassVar[str] = "ConvolutionModule(causal=True)"

    layers: tuple[GridLayer, ...]

    def check(self) -> None:
        check_layers(self)
        if any(layer.stride > 1 for layer in self.layers):
            raise ValueError("Convolutions.layers: a stride above 1 is only possible between stages; use ResidualDown")

    def build(self, site: Site) -> nn.Module:
        return ConvolutionsModule(self.layers, site.width, site)


class ConvolutionsModule(ConvolutionChain):
    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        grid = ctx.extra(Grid)
        assert grid is not None, "convolutions need a grid"
        if ctx.is_token is not None:
            raise ValueError("Convolutions needs the whole grid: give no attention_mask")
        return self.run(x, grid, ctx)[0]


class ResidualDown(Down, sees="all", called=("ResNet's first layer of a stage",)):
    """activation(skip(x) + layers(x)): a residual step that changes the width or the grid; the skip connection is a
    convolution too [He et al. 2016]."""

    width: Count
    layers: tuple[GridLayer, ...]
    skip: Convolution
    activation: Activation = "relu"

    def check(self) -> None:
        check_layers(self)
        if self.skip.width is not None or self.skip.stride != self.stride:
            raise ValueError(f"ResidualDown.skip must have the stride of all layers, {self.stride}, and no width")

    @property
    def stride(self) -> int:
        return math.prod(layer.stride for layer in self.layers)

    def coarser(self, grid: Grid) -> Grid:
        for layer in self.layers:
            grid = layer.coarser(grid)
        return grid

    def out_width(self, width: int) -> int:
        return self.width


class ResidualDownModule(ConvolutionChain, of=ResidualDown):
    def __init__(self, part: ResidualDown, site: Site) -> None:
        wider = Site(width=part.width, layer=site.layer, depth=site.depth, address=site.address)
        super().__init__(part.layers, site.width, wider)
        self.skip = part.skip.build(wider.child("skip"), site.width)
        self.activation = ACTIVATIONS[part.activation]

    def forward(self, x: Tensor, grid: Grid, ctx: Context) -> tuple[Tensor, Grid]:
        skip, _ = self.skip(x, grid)
        x, grid = self.run(x, grid, ctx)
        return self.activation(skip + x), grid


class LayersDown(Down, sees="all", called=("stem",)):
    """A sequence of grid layers, then max pooling with stride 2 (the stem of LR-Net)."""

    width: Count
    layers: tuple[GridLayer, ...]
    pool: Odd | None = None  # kernel size of the max pooling; None: no pooling

    def check(self) -> None:
        if not self.layers:
            raise ValueError("LayersDown.layers is empty; give at least one layer")

    def coarser(self, grid: Grid) -> Grid:
        for layer in self.layers:
            grid = layer.coarser(grid)
        return grid if self.pool is None else halved(grid)

    def out_width(self, width: int) -> int:
        for layer in self.layers:
            width = layer.out_width(width, self.width)
        return width


class LayersDownModule(ConvolutionChain, of=LayersDown):
    def __init__(self, part: LayersDown, site: Site) -> None:
        if part.out_width(site.width) != part.width:
            width = part.out_width(site.width)
            raise ValueError(f"{site.address}: its layers return {width} channels, not LayersDown.width {part.width}")
        super().__init__(part.layers, site.width, dataclasses.replace(site, width=part.width))
        self.pool = part.pool

    def forward(self, x: Tensor, grid: Grid, ctx: Context) -> tuple[Tensor, Grid]:
        x, grid = self.run(x, grid, ctx)
        return (x, grid) if self.pool is None else max_pool(x, grid, self.pool)


def halved(grid: Grid) -> Grid:
    return Grid(*(-(-side // 2) for side in grid))


def max_pool(x: Tensor, grid: Grid, size: int) -> tuple[Tensor, Grid]:
    """Max pooling of `size` x `size` pixels with stride 2."""
    y = F.max_pool2d(x.unflatten(1, grid).permute(0, 3, 1, 2), size, stride=2, padding=size // 2)
    return y.permute(0, 2, 3, 1).flatten(1, 2), halved(grid)
