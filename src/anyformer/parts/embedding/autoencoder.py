"""Encoders of image autoencoders: of DALL-E's discrete VAE [Ramesh et al. 2021] and of latent diffusion [Rombach et al.
2022].

B batch, C channels, H W pixels, D width.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.activation import Activation
from anyformer.parts.base import PartModule
from anyformer.parts.embedding.convolution import GridEmbedding, check_pixels
from anyformer.parts.grid.autoencoder_kl import Downsample, MiddleBlock, Normed, Stage, check_groups
from anyformer.parts.grid.dvae import check_stages, residual_stages
from anyformer.parts.grid.windows import Grid
from anyformer.parts.init import Kaiming
from anyformer.runtime.context import Context
from anyformer.runtime.state import State
from anyformer.specs.field_types import Count, Odd
from anyformer.specs.part import Site


class ConvEmbedding(GridEmbedding, sees="all", called=("convolutional encoder", "dVAE encoder")):
    """Encodes an image as a grid of vectors by residual convolutions, in stages of `widths` from fine to coarse. Max
    pooling between stages halves the rows and columns."""

    widths: tuple[int, ...] = (256, 512, 1024, 2048)
    blocks: Count = 2  # per stage
    kernel: Odd = 7  # of the first convolution

    def check(self) -> None:
        check_stages("ConvEmbedding", self.widths, self.blocks)
        if any(side < self.factor or side % self.factor for side in self.image_size):
            size = " x ".join(map(str, self.image_size))
            stages = len(self.widths)
            raise ValueError(f"ConvEmbedding: {stages} stages need sides divisible by {self.factor}, got {size}")

    @property
    def factor(self) -> int:
        """Rows of pixels per row of the grid."""
        return 2 ** (len(self.widths) - 1)

    @property
    def grid(self) -> Grid:
        return Grid(self.image_size[0] // self.factor, self.image_size[1] // self.factor)


class ConvEmbeddingModule(PartModule, of=ConvEmbedding):
    def __init__(self, part: ConvEmbedding, site: Site) -> None:
        super().__init__()
        self.part = part
        self.first = nn.Conv2d(part.channels, part.widths[0], part.kernel, padding=part.kernel // 2)
        self.stages = residual_stages(part.widths[0], part.widths, part.blocks)
        self.out = nn.Conv2d(part.widths[-1], site.width, 1)
        self.starts = {"first.weight": Kaiming(gain=1.0), "out.weight": Kaiming()}

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        x = self.first(check_pixels(inputs, self.part))
        for i, stage in enumerate(self.stages):
            x = stage(F.max_pool2d(x, 2) if i else x)
        x = self.out(F.relu(x))
        grid = Grid(x.shape[2], x.shape[3])
        index = torch.arange(math.prod(grid), device=x.device)
        return x.flatten(2).transpose(1, 2), Context(index=index, positions=index[None], extras=(grid,))


class KLEmbedding(GridEmbedding, sees="all", called=("AutoencoderKL", "encoder of Stable Diffusion")):
    """Encodes an image as a grid of vectors by residual convolutions with group norms, in stages of `widths` from fine
    to coarse, with attention at the end. Each stage after the first halves the rows and columns. Images can have any
    size; `image_size` is used to count FLOPs and memory."""

    any_size: ClassVar[bool] = True

    widths: tuple[int, ...] = (128, 256, 512, 512)
    blocks: Count = 2  # per stage
    groups: Count = 32  # of the group norms
    activation: Activation = "silu"
    attention: bool = True

    def check(self) -> None:
        check_stages("KLEmbedding", self.widths, self.blocks)
        check_groups(self)
        if min(self.image_size) < 2 ** (len(self.widths) - 1):
            raise ValueError(f"KLEmbedding.image_size {self.image_size} is too small for {len(self.widths)} stages")

    @property
    def grid(self) -> Grid:
        return Grid(*(side // 2 ** (len(self.widths) - 1) for side in self.image_size))


class KLEmbeddingModule(PartModule, of=KLEmbedding):
    def __init__(self, part: KLEmbedding, site: Site) -> None:
        super().__init__()
        self.part = part
        self.first = nn.Conv2d(part.channels, part.widths[0], 3, padding=1)
        before, last = (part.widths[0], *part.widths), len(part.widths) - 1
        self.stages = nn.ModuleList(
            Stage(part, before[i], wide, Downsample(wide) if i < last else None) for i, wide in enumerate(part.widths)
        )
        self.middle = MiddleBlock(part, part.widths[-1])
        self.norm = Normed(part, part.widths[-1])
        self.out = nn.Conv2d(part.widths[-1], site.width, 3, padding=1)

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        x = self.first(check_pixels(inputs, self.part))
        for stage in self.stages:
            x = stage(x)
        x = self.out(F.silu(self.norm(self.middle(x))))  # as published, always SiLU
        index = torch.arange(x.shape[2] * x.shape[3], device=x.device)
        grid = Grid(x.shape[2], x.shape[3])
        return x.flatten(2).transpose(1, 2), Context(index=index, positions=index[None], extras=(grid,))
