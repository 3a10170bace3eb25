"""Rotary positions [Su et al. 2021], and their scaling to texts that are longer than the training texts.

B batch, T tokens, K head width.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.parts.computed import Computed
from anyformer.parts.position.bias import AttentionPosition, AttentionPositionModule
from anyformer.runtime.context import Context
from anyformer.specs.field_types import Count, Fraction, Positive, TwoOrMore
from anyformer.specs.part import Part, Site


class RopeScaling(Part, abstract=True):
    """How rotary frequencies are scaled for texts that are longer than the training texts."""

    @property
    def magnitude(self) -> float:
        """Factor of queries and keys."""
        return 1.0

    def check_width(self, width: int, address: str) -> None:
        """Raise ValueError if this scaling does not fit a head with `width` rotary channels."""

    def scaled(self, plain: Tensor, width: int, base: float) -> Tensor:
        """Return the frequencies (width / 2,) given the unscaled ones, in radians per position."""
        return plain

    def at_length(self, frequency: Tensor, width: int, base: float, length: Tensor) -> Tensor:
        """Return the frequencies (width / 2,) for a text of `length` tokens, given the result of `scaled`. Called if
        `length_dependent`. `length` is a tensor, so that nothing waits for the GPU."""
        return frequency


class LinearScaling(RopeScaling, sees="itself", called=("position interpolation",)):
    """Divides positions by a factor [Chen et al. 2023]."""

    factor: Positive

    def scaled(self, plain: Tensor, width: int, base: float) -> Tensor:
        return plain / self.factor


class DynamicScaling(RopeScaling, sees="itself", called=("NTK",)):
    """NTK-aware scaling: the base grows with the text if it is longer than `length`. As published, a later token then
    changes the angles of all earlier ones, even in a decoder."""

    length_dependent: ClassVar[bool] = True

    factor: Positive
    length: Count

    def check_width(self, width: int, address: str) -> None:
        if width < 3:
            raise ValueError(f"{address}: DynamicScaling needs at least two pairs of channels that rotate")

    def at_length(self, frequency: Tensor, width: int, base: float, length: Tensor) -> Tensor:
        longest = length.clamp(min=self.length).float()
        growth = self.factor * longest / self.length - (self.factor - 1)
        return unscaled_frequencies(width, base * growth ** (width / (width - 2)), length.device)


class LongScaling(RopeScaling, sees="itself", called=("LongRoPE",)):
    """Divides each frequency by its own factor [Ding et al. 2024], a `long` one if the text is longer than `length`. As
    published, a later token then changes the angles of all earlier ones."""

    length_dependent: ClassVar[bool] = True

    short: tuple[Positive, ...]
    long: tuple[Positive, ...]
    length: TwoOrMore  # length of training texts
    factor: Positive = 1.0  # extension of that length; determines the default of attention_factor
    attention_factor: float | None = None  # multiplies queries and keys

    @property
    def magnitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(1 + math.log(self.factor) / math.log(self.length)) if self.factor > 1 else 1.0

    def check_width(self, width: int, address: str) -> None:
        for name in ("short", "long"):
            if (given := len(getattr(self, name))) not in (1, (width + 1) // 2):
                raise ValueError(f"{address}: LongScaling.{name} has {given} factors for {width // 2} pairs")

    def scaled(self, plain: Tensor, width: int, base: float) -> Tensor:
        """Return the short and the long frequencies (2, width / 2)."""
        return torch.stack([plain / torch.tensor(each) for each in (self.short, self.long)])

    def at_length(self, frequency: Tensor, width: int, base: float, length: Tensor) -> Tensor:
        return torch.where(length > self.length, frequency[1], frequency[0])


class ProportionalScaling(RopeScaling, sees="itself"):
    """Rotates only a share of the channel pairs, those with the highest frequencies."""

    share: Fraction = 1.0
    factor: Positive = 1.0  # divides positions

    def scaled(self, plain: Tensor, width: int, base: float) -> Tensor:
        return torch.where(torch.arange(len(plain)) < int(self.share * width // 2), plain / self.factor, 0.0)


class YarnScaling(RopeScaling, sees="itself", called=("YaRN",)):
    """Interpolates low frequencies, keeps high ones, and scales the scores [Peng et al. 2023]."""

    factor: Positive
    length: Count  # length of training texts
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    @property
    def magnitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self.temperature(self.mscale) / self.temperature(self.mscale_all_dim)
        return self.temperature(1.0)

    def temperature(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def check_width(self, width: int, address: str) -> None:
        if width % 2:
            raise ValueError(f"{address}: YarnScaling needs an even number of channels that rotate, got {width}")

    def scaled(self, plain: Tensor, width: int, base: float) -> Tensor:
        def channel(turns: float) -> float:
            """Return the channel pair that makes `turns` full turns over the length of training texts."""
            return width * math.log(self.length / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = channel(self.beta_fast), channel(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        ramp = ((torch.arange(width // 2).float() - low) / (high - low or 1e-3)).clamp(0, 1)
        return plain / self.factor * ramp + plain * (1 - ramp)


class Llama3Scaling(RopeScaling, sees="itself"):
    """Keeps high frequencies, divides low ones, and blends in between [Llama 3.1, 2024]."""

    factor: Positive
    low_frequency_factor: Positive
    high_frequency_factor: float
    length: Count  # length of training texts

    def scaled(self, plain: Tensor, width: int, base: float) -> Tensor:
        wavelength = 2 * math.pi / plain
        low, high = self.low_frequency_factor, self.high_frequency_factor
        if high > low:
            blend = ((self.length / wavelength - low) / (high - low)).clamp(0, 1)  # 1: keep, 0: divide
        else:  # no band between them
            blend = (wavelength <= self.length / low).float()
        return (1 - blend) * plain / self.factor + blend * plain


class Rope(AttentionPosition, sees="itself", called=("rotary", "RoFormer", "rotary position embedding")):
    """Rotary positions [Su et al. 2021]: pairs of a head's channels rotate by an angle proportional to the position."""

    base: Positive = 10000.0
    interleaved: bool = False  # pairs are neighbours (GPT-J); otherwise channel i pairs with i + K/2 (NeoX, Llama)
    fraction: Positive = 1.0  # share of the head's channels that rotate
    scaling: RopeScaling | None = None

    def check(self) -> None:
        if self.fraction > 1:
            raise ValueError(f"Rope.fraction is {self.fraction}; it must be in (0, 1]")

    def build(self, site: Site) -> nn.Module:
        width = int(site.width * self.fraction)  # rounded up to an even number (GPT-NeoX) if the head is wide enough
        if width < 1 or width + width % 2 > site.width:
            raise ValueError(f"{site.address}: Rope rotates pairs of channels, got {width} of {site.width} channels")
        if self.scaling is not None:
            self.scaling.check_width(width, site.address)
        return RopeModule(self, site.width)


class RopeModule(AttentionPositionModule):
    def __init__(self, part: Rope, head_width: int) -> None:
        super().__init__()
        self.part, self.key = part, f"rope {part!r} {head_width}"
        self.series = int(head_width * part.fraction)  # channels that the frequencies are computed for
        self.width = self.series + self.series % 2
        self.frequency = Computed(lambda: frequencies(self.series, part.base, part.scaling))
        self.magnitude = 1.0 if part.scaling is None else part.scaling.magnitude

    def tables(self, ctx: Context, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos and sin, (1 or B, 1, T, width / 2)."""
        frequency, scaling = self.frequency(), self.part.scaling
        if scaling is not None and scaling.length_dependent:
            frequency = scaling.at_length(frequency, self.series, self.part.base, ctx.positions.max() + 1)
        angle = ctx.positions[:, None, :, None].float() * frequency
        return ((angle.cos() * self.magnitude).to(dtype), (angle.sin() * self.magnitude).to(dtype))

    def pair_tables(self, ctx: Context, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos and sin per channel, (1 or B, 1, T, width), computed once for all layers. In a pair (a, b), b
        contributes to the new a with -sin, and a to the new b with sin."""

        def make() -> tuple[Tensor, Tensor]:
            cos, sin = self.tables(ctx, dtype)
            if self.part.interleaved:
                return cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)
            return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)

        return ctx.once(self.key, make)

    def rotate(self, q: Tensor, k: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        cos, sin = self.pair_tables(ctx, q.dtype)
        return self.turn(q, cos, sin), self.turn(k, cos, sin)

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate each pair (a, b) to (a cos - b sin, b cos + a sin), with `cos` and `sin` from `pair_tables`."""
        rotary, rest = (x, None) if self.width == x.shape[-1] else (x[..., : self.width], x[..., self.width :])
        if self.part.interleaved:
            swapped = rotary.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        else:
            a, b = rotary.chunk(2, dim=-1)
            swapped = torch.cat((b, a), dim=-1)
        new = rotary * cos + swapped * sin
        return new if rest is None else torch.cat((new, rest), dim=-1)


def frequencies(width: int, base: float, scaling: RopeScaling | None = None) -> Tensor:
    """Return (width / 2,) radians per position; with LongScaling (2, width / 2), the short and the long ones."""
    plain = unscaled_frequencies(width, base)
    return plain if scaling is None else scaling.scaled(plain, width, base)


def unscaled_frequencies(width: int, base: float | Tensor, device: torch.device | None = None) -> Tensor:
    return 1.0 / (base ** (torch.arange(0, width, 2, device=device).float() / width))
