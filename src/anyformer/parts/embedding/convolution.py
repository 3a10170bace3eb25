"""Embeddings of images by convolutions, as a grid of vectors.

B batch, C channels, H W pixels.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from anyformer.parts.base import Embedding
from anyformer.parts.grid.convolution import Convolution, ConvolutionChain, check_layers, halved, max_pool
from anyformer.runtime.context import Context
from anyformer.runtime.grid import Grid
from anyformer.runtime.state import State
from anyformer.specs.field_types import Count, Odd
from anyformer.specs.part import Site


class GridEmbedding(Embedding, abstract=True):
    """Base class of embeddings that map an image to a grid of vectors by convolutions."""

    inputs: ClassVar[tuple[str, ...]] = ("pixel_values",)
    any_size: ClassVar[bool] = False  # whether images may have other sizes than `image_size`
    causal_alternative: ClassVar[str] = "TextEmbedding(tokens=...)"
    gives: ClassVar[tuple[str, ...]] = ("an image", "a grid")

    image_size: tuple[int, int]  # rows, columns
    channels: Count = 3

    @property
    def grid(self) -> Grid:
        """The grid of an image of `image_size`."""
        raise NotImplementedError

    def row(self, length: int, width: int) -> dict[str, tuple[int, ...]]:
        return {self.inputs[0]: (self.channels, *self.image_size)}

    def vectors(self, length: int) -> int:
        return math.prod(self.grid)


def check_pixels(inputs: dict[str, Any], part: GridEmbedding) -> Tensor:
    """Return the pixels (B, C, H, W) of the inputs; raise if their shape does not fit."""
    name, pixels = part.inputs[0], inputs.get(part.inputs[0])
    sides = ("height", "width") if part.any_size else part.image_size
    fits = pixels is not None and pixels.dim() == 4 and pixels.shape[1] == part.channels
    if pixels is None or not fits or not (part.any_size or tuple(pixels.shape[2:]) == part.image_size):
        shape = None if pixels is None else tuple(pixels.shape)
        raise ValueError(f"{name} must be (batch, {part.channels} channels, {sides[0]}, {sides[1]}), got {shape}")
    return pixels


class ConvolutionEmbedding(GridEmbedding, sees="all", called=("ResNet stem",)):
    """Convolutions of the pixels, then max pooling with stride 2 [He et al. 2016]. Images can have any size."""

    any_size: ClassVar[bool] = True

    layers: tuple[Convolution, ...]
    pool: Odd | None = 3  # kernel size of the max pooling; None: no pooling
    image_size: tuple[Count, Count] = (224, 224)  # used to count FLOPs and memory

    @property
    def grid(self) -> Grid:
        grid = Grid(*self.image_size)
        for layer in self.layers:
            grid = layer.coarser(grid)
        return grid if self.pool is None else halved(grid)

    def check(self) -> None:
        check_layers(self)


class ConvolutionEmbeddingModule(ConvolutionChain, of=ConvolutionEmbedding):
    def __init__(self, part: ConvolutionEmbedding, site: Site) -> None:
        super().__init__(part.layers, part.channels, site)
        self.part = part

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        pixels, pool = check_pixels(inputs, self.part), self.part.pool
        x, grid = pixels.permute(0, 2, 3, 1).flatten(1, 2).contiguous(), Grid(pixels.shape[2], pixels.shape[3])
        x, grid = self.run(x, grid)
        if pool is not None:
            x, grid = max_pool(x, grid, pool)
        index = torch.arange(x.shape[1], device=x.device)
        return x, Context(index=index, positions=index[None], extras=(grid,))
