"""The autoencoder of latent diffusion [Rombach et al. 2022]: residual convolutions with group norms, and attention over
the coarsest grid.

B batch, C channels, H W pixels, N places of the grid, W width of a stage.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.grid.convolution import GridEmbedding, check_pixels
from anyformer.parts.grid.dvae import ImageDecoder, check_stages
from anyformer.parts.grid.windows import Grid
from anyformer.runtime.context import Context
from anyformer.runtime.state import State
from anyformer.specs.checks import at_least
from anyformer.specs.part import Site

EPS = 1e-6


class KLEmbedding(GridEmbedding, sees="all", called=("AutoencoderKL", "encoder of Stable Diffusion")):
    """A grid of vectors made of a picture by residual convolutions with group norms: stages of `widths`, from fine to
    coarse, each but the first on half as many rows and columns as the one before, and attention at the end. It reads
    pictures of any size; `image_size` is the one that is counted."""

    any_size: ClassVar[bool] = True

    widths: tuple[int, ...] = (128, 256, 512, 512)
    blocks: int = 2  # in each stage
    groups: int = 32  # of each norm
    activation: Activation = "silu"
    attention: bool = True

    def check(self) -> None:
        at_least(self, 1, "channels", "blocks")
        check_stages("KLEmbedding", self.widths, self.blocks)
        check_groups(self)
        if min(self.image_size) < 2 ** (len(self.widths) - 1):
            raise ValueError(f"KLEmbedding: {len(self.widths)} stages halve {self.image_size} pixels to nothing")

    @property
    def grid(self) -> Grid:
        return Grid(*(side // 2 ** (len(self.widths) - 1) for side in self.image_size))

    def build(self, site: Site) -> nn.Module:
        return KLEmbeddingModule(self, site.width)


class KLDecoder(ImageDecoder, sees="all", called=("AutoencoderKL", "decoder of Stable Diffusion")):
    """Pixels made of a grid of vectors, the way back from `KLEmbedding`: attention, and stages of `widths` from coarse
    to fine, each but the last followed by twice as many rows and columns. `mix` is a product before all that."""

    widths: tuple[int, ...] = (512, 512, 256, 128)
    blocks: int = 3
    groups: int = 32
    activation: Activation = "silu"
    attention: bool = True
    mix: bool = True

    def check(self) -> None:
        super().check()
        check_groups(self)

    def build(self, site: Site) -> nn.Module:
        return KLDecoderModule(self, site.width)


def check_groups(part: Any) -> None:
    at_least(part, 1, "groups")
    if uneven := [width for width in part.widths if width % part.groups]:
        raise ValueError(f"{type(part).__name__}.groups: {uneven[0]} channels are not {part.groups} equal groups")


class Normed(nn.GroupNorm):
    def __init__(self, part: Any, width: int) -> None:
        super().__init__(part.groups, width, eps=EPS)


class KLEmbeddingModule(nn.Module):
    def __init__(self, part: KLEmbedding, width: int) -> None:
        super().__init__()
        self.part = part
        self.first = nn.Conv2d(part.channels, part.widths[0], 3, padding=1)
        before, last = (part.widths[0], *part.widths), len(part.widths) - 1
        self.stages = nn.ModuleList(
            Stage(part, before[i], wide, Downsample(wide) if i < last else None) for i, wide in enumerate(part.widths)
        )
        self.middle = MiddleBlock(part, part.widths[-1])
        self.norm = Normed(part, part.widths[-1])
        self.out = nn.Conv2d(part.widths[-1], width, 3, padding=1)

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        x = self.first(check_pixels(inputs, self.part))
        for stage in self.stages:
            x = stage(x)
        x = self.out(F.silu(self.norm(self.middle(x))))  # published with no other there
        index = torch.arange(x.shape[2] * x.shape[3], device=x.device)
        grid = Grid(x.shape[2], x.shape[3])
        return x.flatten(2).transpose(1, 2), Context(index=index, positions=index[None], extras=(grid,))


class KLDecoderModule(nn.Module):
    def __init__(self, part: KLDecoder, width: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(width, width, 1) if part.mix else None
        self.first = nn.Conv2d(width, part.widths[0], 3, padding=1)
        self.middle = MiddleBlock(part, part.widths[0])
        before, last = (part.widths[0], *part.widths), len(part.widths) - 1
        self.stages = nn.ModuleList(
            Stage(part, before[i], wide, Upsample(wide) if i < last else None) for i, wide in enumerate(part.widths)
        )
        self.norm = Normed(part, part.widths[-1])
        self.out = nn.Conv2d(part.widths[-1], part.channels, 3, padding=1)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, N, E) -> (B, C, H, W)"""
        x = x.transpose(1, 2).unflatten(2, grid)
        x = self.middle(self.first(x if self.mix is None else self.mix(x)))
        for stage in self.stages:
            x = stage(x)
        return self.out(F.silu(self.norm(x)))


class Stage(nn.Module):
    """Residual steps on one grid, and the way to the next."""

    def __init__(self, part: Any, inputs: int, width: int, then: nn.Module | None) -> None:
        super().__init__()
        given = (inputs, *[width] * (part.blocks - 1))
        self.layers = nn.ModuleList(ResnetBlock(part, each, width) for each in given)
        self.then = then

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x if self.then is None else self.then(x)


class Downsample(nn.Module):
    """Every second row and column, with a row of zeros below and a column of them on the right."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.taps = nn.Conv2d(width, width, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.taps(F.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    """Each row and column twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.taps = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.taps(F.interpolate(x, scale_factor=2.0))


class ResnetBlock(nn.Module):
    """Two convolutions of 3 x 3, each after a norm, added to what came in [He et al. 2016b]."""

    def __init__(self, part: Any, inputs: int, width: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[part.activation]
        self.first_norm, self.second_norm = Normed(part, inputs), Normed(part, width)
        self.first, self.second = nn.Conv2d(inputs, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.skip = nn.Conv2d(inputs, width, 1) if inputs != width else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(self.activation(self.first_norm(x)))
        y = self.second(self.activation(self.second_norm(y)))
        return (x if self.skip is None else self.skip(x)) + y


class MiddleBlock(nn.Module):
    """On the coarsest grid: a residual step, attention of one head, another step."""

    def __init__(self, part: Any, width: int) -> None:
        super().__init__()
        self.first, self.last = ResnetBlock(part, width, width), ResnetBlock(part, width, width)
        self.attention = SpatialAttention(part, width) if part.attention else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x if self.attention is None else self.attention(x))


class SpatialAttention(nn.Module):
    """Each place looks at all places."""

    def __init__(self, part: Any, width: int) -> None:
        super().__init__()
        self.norm = Normed(part, width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        seen = self.norm(x).flatten(2).transpose(1, 2)[:, None]  # (B, 1, N, W)
        found = self.o(F.scaled_dot_product_attention(self.q(seen), self.k(seen), self.v(seen)))
        return x + found[:, 0].transpose(1, 2).unflatten(2, x.shape[2:])
