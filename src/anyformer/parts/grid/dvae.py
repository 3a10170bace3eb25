"""Image autoencoders: DALL-E's discrete VAE [Ramesh et al. 2021], finite scalar quantisation [Mentzer et al. 2024] and
the Gaussian latents of latent diffusion [Rombach et al. 2022].

B batch, C channels, H W pixels, N cells of the grid, D width, E width of the latent.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.base import PartModule
from anyformer.parts.grid.windows import Grid
from anyformer.parts.init import Kaiming, Normal
from anyformer.specs.field_types import Count, Positive, TwoOrMore
from anyformer.specs.part import Part, Site


class ImageDecoder(Part, abstract=True):
    """Base class of decoders from a grid of vectors to pixels, in stages of `widths` from coarse to fine."""

    channels: Count = 3
    widths: tuple[int, ...]
    blocks: Count = 2

    def check(self) -> None:
        check_stages(type(self).__name__, self.widths, self.blocks)

    def finer(self, grid: Grid) -> Grid:
        """Return the grid of pixels."""
        return Grid(*(side * 2 ** (len(self.widths) - 1) for side in grid))

    def out_width(self, width: int) -> int:
        return self.channels


class ConvDecoder(ImageDecoder, sees="all", called=("convolutional decoder", "dVAE decoder")):
    """Decodes a grid of vectors to pixels by residual convolutions. Each stage after the first doubles the rows and
    columns."""

    widths: tuple[int, ...] = (2048, 1024, 512, 256)


class ConvDecoderModule(PartModule, of=ConvDecoder):
    def __init__(self, part: ConvDecoder, site: Site) -> None:
        super().__init__()
        self.first = nn.Conv2d(site.width, part.widths[0], 1)
        self.stages = residual_stages(part.widths[0], part.widths, part.blocks)
        self.out = nn.Conv2d(part.widths[-1], part.channels, 1)
        self.starts = {"first.weight": Kaiming(gain=1.0), "out.weight": Kaiming(gain=1.0)}

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, N, E) -> (B, C, H, W)"""
        x = self.first(x.transpose(1, 2).unflatten(2, grid))
        for i, stage in enumerate(self.stages):
            x = stage(F.interpolate(x, scale_factor=2.0) if i else x)
        return self.out(F.relu(x))


def check_stages(kind: str, widths: tuple[int, ...], blocks: int) -> None:
    if not widths or min(widths) < 1:
        raise ValueError(f"{kind}.widths are {widths}; give one width of at least 1 per stage")
    if len(widths) > 20 or blocks > 1000:  # a hostile file must not keep a machine busy for hours
        raise ValueError(f"{kind}: {len(widths):,} stages of {blocks:,} blocks; the limit is 20 stages of 1,000 blocks")


def residual_stages(width: int, widths: tuple[int, ...], blocks: int) -> nn.ModuleList:
    gain, stages = 1 / (len(widths) * blocks), nn.ModuleList()
    for stage_width in widths:
        inputs = (width, *[stage_width] * (blocks - 1))
        stages.append(nn.Sequential(*[ResidualConvolution(each, stage_width, gain) for each in inputs]))
        width = stage_width
    return stages


class ResidualConvolution(nn.Module):
    """A residual block: three 3 x 3 convolutions of a quarter of the width, then a 1 x 1 convolution [Ramesh et al.
    2021]. `gain` scales the branch, so that deep stacks start near the identity."""

    def __init__(self, inputs: int, width: int, gain: float) -> None:
        super().__init__()
        inner = max(width // 4, 1)
        self.skip = nn.Conv2d(inputs, width, 1) if inputs != width else None
        self.inner = nn.ModuleList([nn.Conv2d(given, inner, 3, padding=1) for given in (inputs, inner, inner)])
        self.out = nn.Conv2d(inner, width, 1)
        self.gain = gain
        self.starts = {f"{name}.weight": Kaiming() for name in ("out", "inner.0", "inner.1", "inner.2")}
        self.starts["skip.weight"] = Kaiming(gain=1.0)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for convolution in self.inner:
            y = convolution(F.relu(y))
        return (x if self.skip is None else self.skip(x)) + self.gain * self.out(F.relu(y))


# -- latents ----------------------------------------------------------------------------------------------------------


class Latent(Part, abstract=True):
    """Base class of latents, the compressed form of an image. The module's `read` maps the encoder's grid (B, N, D) to
    codes (B, N), or to numbers (B, N, E) if not `discrete`; `vectors` maps these to the decoder's input (B, N, E);
    `forward` does both for training, and also returns the KL cost of each cell (B, N)."""

    discrete: ClassVar[bool] = True

    width: Count = 128  # E

    def out_width(self, width: int) -> int:
        return self.width


class GumbelCodes(Latent, sees="itself", called=("discrete VAE", "dVAE", "DALL-E", "Gumbel softmax")):
    """Each cell is one of `codes` codes: the most likely one, or in training a sample of the Gumbel softmax
    [Jang et al. 2017]. The cost is the KL divergence from the uniform distribution, in nats."""

    codes: TwoOrMore = 8192
    temperature: Positive = 1.0  # of the Gumbel softmax
    soft: bool = False  # use the soft sample (DALL-E, with a falling temperature); False: straight-through one-hot


class GumbelCodesModule(PartModule, of=GumbelCodes):
    def __init__(self, part: GumbelCodes, site: Site) -> None:
        super().__init__()
        self.part = part
        self.choose = nn.Linear(site.width, part.codes)
        self.table = nn.Parameter(torch.empty(part.codes, part.width))
        self.starts = {"choose.weight": Kaiming(gain=1.0), "table": Normal(std=1.0)}

    def read(self, x: Tensor) -> Tensor:
        return self.choose(x).argmax(-1)

    def vectors(self, codes: Tensor) -> Tensor:
        return F.embedding(codes, self.table)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.choose(x).float()
        logs = scores.log_softmax(-1)
        price = (logs.exp() * logs).sum(-1) + math.log(self.part.codes)
        if not self.training:
            return self.vectors(scores.argmax(-1)), price
        drawn = F.gumbel_softmax(scores, tau=self.part.temperature, hard=not self.part.soft)
        return drawn.to(self.table.dtype) @ self.table, price


class RoundedCodes(Latent, sees="itself", called=("FSQ", "finite scalar quantisation")):
    """Each cell is a few numbers, each rounded to one of its `levels`; together they are the code. The gradient is
    straight-through [Mentzer et al. 2024]. There is no KL cost."""

    levels: tuple[int, ...] = (8, 5, 5, 5)  # of each number

    def check(self) -> None:
        super().check()
        if not self.levels or min(self.levels) < 2 or self.codes > 2**31:
            raise ValueError(f"RoundedCodes.levels are {self.levels}; use at least 2 each, their product at most 2^31")

    @property
    def codes(self) -> int:
        return math.prod(self.levels)


class RoundedCodesModule(PartModule, of=RoundedCodes):
    def __init__(self, part: RoundedCodes, site: Site) -> None:
        super().__init__()
        self.levels = part.levels
        self.narrow = nn.Linear(site.width, len(part.levels))
        self.wide = nn.Linear(len(part.levels), part.width)
        self.starts = {"narrow.weight": Kaiming(gain=1.0), "wide.weight": Kaiming(gain=1.0)}

    def steps(self, x: Tensor) -> Tensor:
        """Map x (B, N, D) to unrounded levels (B, N, numbers), from 0 to the last level of each number."""
        most = torch.tensor(self.levels, device=x.device) - 1
        return (self.narrow(x).float().tanh() + 1) / 2 * most

    def embed_levels(self, steps: Tensor) -> Tensor:
        most = torch.tensor(self.levels, device=steps.device) - 1
        return self.wide((2 * steps / most - 1).to(self.wide.weight.dtype))

    def places(self, device: torch.device) -> Tensor:
        """Return the place value of each number in a code: 1 for the first."""
        return torch.tensor([math.prod(self.levels[:i]) for i in range(len(self.levels))], device=device)

    def read(self, x: Tensor) -> Tensor:
        return (self.steps(x).round().long() * self.places(x.device)).sum(-1)

    def vectors(self, codes: Tensor) -> Tensor:
        levels = torch.tensor(self.levels, device=codes.device)
        return self.embed_levels((codes[..., None] // self.places(codes.device) % levels).float())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        steps = self.steps(x)
        return self.embed_levels(steps + (steps.round() - steps).detach()), steps.new_zeros(x.shape[:2])


class GaussianLatent(Latent, sees="itself", called=("KL autoencoder", "latent diffusion")):
    """Each cell is `width` numbers: the predicted mean, or in training a sample with the predicted variance [Kingma and
    Welling 2014]. The cost is the KL divergence from the standard normal distribution, in nats. A diffusion model gets
    (z - shift) * scale, whose variance should be about 1, as the noise [Rombach et al. 2022]."""

    discrete: ClassVar[bool] = False

    width: Count = 4
    scale: Positive | None = 1.0  # None: measured in training, so that the mean square becomes 1
    shift: float = 0.0  # subtracted before scaling
    project: bool = True  # compute mean and variance by a linear layer; False: the encoder's output contains them


class GaussianModule(PartModule, of=GaussianLatent):
    MOMENTUM = 0.01  # weight of the newest batch in the running mean square

    square: Tensor | None

    def __init__(self, part: GaussianLatent, site: Site) -> None:
        super().__init__()
        self.given, self.shift = part.scale, part.shift
        if not part.project and site.width != 2 * part.width:
            raise ValueError(
                f"latent.project=False needs a width of 2 * {part.width} (mean and variance), got {site.width}"
            )
        self.say = nn.Linear(site.width, 2 * part.width) if part.project else nn.Identity()
        self.register_buffer("square", torch.zeros(()) if part.scale is None else None)  # 0: not measured yet
        self.starts = {"say.weight": Kaiming(gain=1.0), "square": 0.0}

    def scale(self) -> Tensor | float:
        if self.square is None:
            return self.given or 1.0
        return torch.where(self.square > 0, self.square, 1.0).rsqrt()

    def read(self, x: Tensor) -> Tensor:
        return (self.say(x).chunk(2, dim=-1)[0] - self.shift) * self.scale()

    def vectors(self, codes: Tensor) -> Tensor:
        return codes / self.scale() + self.shift

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log = self.say(x).float().chunk(2, dim=-1)
        log = log.clamp(-30.0, 20.0)  # of the variance
        price = (mean.square() + log.exp() - 1 - log).sum(-1) / 2
        if self.training and self.square is not None:
            now, before = mean.detach().square().mean().to(self.square.dtype), self.square
            self.square.copy_(torch.where(before > 0, torch.lerp(before, now, self.MOMENTUM), now))
        z = mean + (log / 2).exp() * torch.randn_like(mean) if self.training else mean
        return z.to(x.dtype), price
