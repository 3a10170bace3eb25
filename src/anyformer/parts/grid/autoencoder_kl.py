"""The autoencoder of latent diffusion [Rombach et al. 2022]: residual convolutions with group norms, and attention on
the coarsest grid.

B batch, C channels, H W pixels, N cells of the grid, E width of the latent, W width of a stage.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.base import PartModule
from anyformer.parts.grid.dvae import ImageDecoder
from anyformer.parts.grid.windows import Grid
from anyformer.specs.field_types import Count
from anyformer.specs.part import Site

EPS = 1e-6


class KLDecoder(ImageDecoder, sees="all", called=("AutoencoderKL", "decoder of Stable Diffusion")):
    """Decodes a grid of vectors of `KLEmbedding` to pixels: attention, then stages of `widths` from coarse to fine.
    Each stage but the last doubles the rows and columns at its end."""

    widths: tuple[int, ...] = (512, 512, 256, 128)
    blocks: Count = 3
    groups: Count = 32
    activation: Activation = "silu"
    attention: bool = True
    mix: bool = True  # start with a 1 x 1 convolution

    def check(self) -> None:
        super().check()
        check_groups(self)


def check_groups(part: Any) -> None:
    if uneven := [width for width in part.widths if width % part.groups]:
        kind = type(part).__name__
        raise ValueError(f"{kind}.groups: width {uneven[0]} is not a multiple of {part.groups} groups")


class Normed(nn.GroupNorm):
    def __init__(self, part: Any, width: int) -> None:
        super().__init__(part.groups, width, eps=EPS)


class KLDecoderModule(PartModule, of=KLDecoder):
    def __init__(self, part: KLDecoder, site: Site) -> None:
        super().__init__()
        self.mix = nn.Conv2d(site.width, site.width, 1) if part.mix else None
        self.first = nn.Conv2d(site.width, part.widths[0], 3, padding=1)
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
    """Residual blocks on one grid, then `then`, the step to the next grid."""

    def __init__(self, part: Any, inputs: int, width: int, then: nn.Module | None) -> None:
        super().__init__()
        widths = (inputs, *[width] * (part.blocks - 1))
        self.layers = nn.ModuleList(ResnetBlock(part, each, width) for each in widths)
        self.then = then

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x if self.then is None else self.then(x)


class Downsample(nn.Module):
    """A 3 x 3 convolution with stride 2, zero-padded only below and on the right."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.taps = nn.Conv2d(width, width, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.taps(F.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    """Repeats each row and column, then applies a 3 x 3 convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.taps = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.taps(F.interpolate(x, scale_factor=2.0))


class ResnetBlock(nn.Module):
    """A residual block of two 3 x 3 convolutions, each after a norm and an activation [He et al. 2016b]."""

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
    """On the coarsest grid: a residual block, single-head attention, a second residual block."""

    def __init__(self, part: Any, width: int) -> None:
        super().__init__()
        self.first, self.last = ResnetBlock(part, width, width), ResnetBlock(part, width, width)
        self.attention = SpatialAttention(part, width) if part.attention else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x if self.attention is None else self.attention(x))


class SpatialAttention(nn.Module):
    """Single-head attention over all cells, with a residual connection."""

    def __init__(self, part: Any, width: int) -> None:
        super().__init__()
        self.norm = Normed(part, width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x).flatten(2).transpose(1, 2)[:, None]  # (B, 1, N, W)
        y = self.o(F.scaled_dot_product_attention(self.q(y), self.k(y), self.v(y)))
        return x + y[:, 0].transpose(1, 2).unflatten(2, x.shape[2:])
