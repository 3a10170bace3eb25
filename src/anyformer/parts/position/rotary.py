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


class RopeScaling(Part):
    """How rotary frequencies are scaled for texts that are longer than the training texts."""


class LinearScaling(RopeScaling, sees="itself", called=("position interpolation",)):
    """Divides positions by a factor [Chen et al. 2023]."""

    factor: Positive


class DynamicScaling(RopeScaling, sees="itself", called=("NTK",)):
    """NTK-aware scaling: the base grows with the text if it is longer than `length`. As published, a later token then
    changes the angles of all earlier ones, even in a decoder."""

    length_dependent: ClassVar[bool] = True

    factor: Positive
    length: Count


class LongScaling(RopeScaling, sees="itself", called=("LongRoPE",)):
    """Divides each frequency by its own factor [Ding et al. 2024], a `long` one if the text is longer than `length`. As
    published, a later token then changes the angles of all earlier ones."""

    length_dependent: ClassVar[bool] = True

    short: tuple[Positive, ...]
    long: tuple[Positive, ...]
    length: TwoOrMore  # length of training texts
    factor: Positive = 1.0  # extension of that length; determines the default of attention_factor
    attention_factor: float | None = None  # multiplies queries and keys


class ProportionalScaling(RopeScaling, sees="itself"):
    """Rotates only a share of the channel pairs, those with the highest frequencies."""

    share: Fraction = 1.0
    factor: Positive = 1.0  # divides positions


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


class Llama3Scaling(RopeScaling, sees="itself"):
    """Keeps high frequencies, divides low ones, and blends in between [Llama 3.1, 2024]."""

    factor: Positive
    low_frequency_factor: Positive
    high_frequency_factor: float
    length: Count  # length of training texts


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
        if width < 1 or width + width % 2 > site.width or (width % 2 and isinstance(self.scaling, YarnScaling)):
            raise ValueError(f"{site.address}: Rope rotates pairs of channels, got {width} of {site.width} channels")
        if width < 3 and isinstance(self.scaling, DynamicScaling):
            raise ValueError(f"{site.address}: DynamicScaling needs at least two pairs of channels that rotate")
        if isinstance(self.scaling, LongScaling):
            for name in ("short", "long"):
                if (given := len(getattr(self.scaling, name))) not in (1, (width + 1) // 2):
                    raise ValueError(f"{site.address}: LongScaling.{name} has {given} factors for {width // 2} pairs")
        return RopeModule(self, site.width)


class RopeModule(AttentionPositionModule):
    def __init__(self, part: Rope, head_width: int) -> None:
        super().__init__()
        self.part, self.key = part, f"rope {part!r} {head_width}"
        self.series = int(head_width * part.fraction)  # channels that the frequencies are computed for
        self.width = self.series + self.series % 2
        self.frequency = Computed(lambda: frequencies(self.series, part.base, part.scaling))
        self.attention_factor = attention_factor(part.scaling)

    def tables(self, ctx: Context, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin, (1 or B, 1, T, width / 2)."""
        frequency, scaling = self.frequency(), self.part.scaling
        if isinstance(scaling, DynamicScaling):
            frequency = dynamic_frequencies(self.series, self.part.base, scaling, ctx.positions.max() + 1)
        elif isinstance(scaling, LongScaling):  # (2, width / 2): short and long
            frequency = torch.where(ctx.positions.max() + 1 > scaling.length, frequency[1], frequency[0])
        angle = ctx.positions[:, None, :, None].float() * frequency
        return ((angle.cos() * self.attention_factor).to(dtype), (angle.sin() * self.attention_factor).to(dtype))

    def pair_tables(self, ctx: Context, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin per channel, (1 or B, 1, T, width), computed once for all layers. In a pair (a, b), b contributes
        to the new a with -sin, and a to the new b with sin."""

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


def frequencies(width: int, base: float, scaling: RopeScaling | None) -> Tensor:
    """(width / 2,) radians per position, scaled; with LongScaling the short and the long ones, (2, width / 2)."""
    plain = 1.0 / (base ** (torch.arange(0, width, 2).float() / width))
    if isinstance(scaling, LinearScaling):
        return plain / scaling.factor
    if isinstance(scaling, ProportionalScaling):
        return torch.where(torch.arange(len(plain)) < int(scaling.share * width // 2), plain / scaling.factor, 0.0)
    if isinstance(scaling, LongScaling):
        return torch.stack([plain / torch.tensor(each) for each in (scaling.short, scaling.long)])
    if isinstance(scaling, Llama3Scaling):
        wavelength = 2 * math.pi / plain
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        if high > low:
            blend = ((scaling.length / wavelength - low) / (high - low)).clamp(0, 1)  # 1: keep, 0: divide
        else:  # no band between them
            blend = (wavelength <= scaling.length / low).float()
        return (1 - blend) * plain / scaling.factor + blend * plain
    if isinstance(scaling, YarnScaling):

        def channel(turns: float) -> float:
            """Return the channel pair that makes `turns` full turns over the length of training texts."""
            return width * math.log(scaling.length / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = channel(scaling.beta_fast), channel(scaling.beta_slow)
        if scaling.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        ramp = ((torch.arange(width // 2).float() - low) / (high - low or 1e-3)).clamp(0, 1)
        return plain / scaling.factor * ramp + plain * (1 - ramp)
    return plain  # no scaling, or dynamic scaling up to `length`


def dynamic_frequencies(width: int, base: float, scaling: DynamicScaling, length: Tensor) -> Tensor:
    """(width / 2,) frequencies for a text of `length` tokens, which is a tensor, so that nothing waits for the GPU."""
    longest = length.clamp(min=scaling.length).float()
    growth = scaling.factor * longest / scaling.length - (scaling.factor - 1)
    base_now = base * growth ** (width / (width - 2))
    return 1.0 / (base_now ** (torch.arange(0, width, 2, device=length.device).float() / width))


def attention_factor(scaling: RopeScaling | None) -> float:
    if not isinstance(scaling, YarnScaling | LongScaling):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if isinstance(scaling, LongScaling):
        return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.length)) if scaling.factor > 1 else 1.0

    def temperature(mscale: float) -> float:
        return 0.1 * mscale * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return temperature(scaling.mscale) / temperature(scaling.mscale_all_dim)
    return temperature(1.0)
