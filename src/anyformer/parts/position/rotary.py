"""Rotary positions [Su et al. 2021], and how they are stretched beyond the length that a model was trained on.

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
from anyformer.specs.checks import at_least, positive
from anyformer.specs.part import Part, Site


class RopeScaling(Part):
    """How the rotary frequencies of a model are stretched beyond the length it was trained on."""


class LinearScaling(RopeScaling, sees="itself", called=("position interpolation",)):
    """Positions divided by a factor [Chen et al. 2023]."""

    factor: float

    def check(self) -> None:
        positive(self, "factor")


class DynamicScaling(RopeScaling, sees="itself", called=("NTK",)):
    """NTK-aware base that grows with the text once it is longer than `length`: there, as published, a token that comes
    later changes the angles of all before it, in a model that writes too."""

    length_dependent: ClassVar[bool] = True

    factor: float
    length: int

    def check(self) -> None:
        positive(self, "factor")
        at_least(self, 1, "length")


class LongScaling(RopeScaling, sees="itself", called=("LongRoPE",)):
    """Each frequency divided by a factor of its own [Ding et al. 2024], of the `long` ones once a text is longer than
    `length`: there, as published, a token that comes later changes the angles of all before it."""

    length_dependent: ClassVar[bool] = True

    short: tuple[float, ...]
    long: tuple[float, ...]
    length: int  # trained on
    factor: float = 1.0  # of that length, which warms the scores
    attention_factor: float | None = None

    def check(self) -> None:
        positive(self, "factor")
        at_least(self, 2, "length")
        if not all(each > 0 for each in (*self.short, *self.long)):
            raise ValueError("LongScaling: every factor of a frequency must be above 0")


class ProportionalScaling(RopeScaling, sees="itself"):
    """The fastest frequencies, a share of them, turn and the others stand still."""

    share: float = 1.0
    factor: float = 1.0  # positions are divided by it

    def check(self) -> None:
        positive(self, "factor")
        if not 0 <= self.share <= 1:
            raise ValueError(f"ProportionalScaling.share is {self.share}; it must be in [0, 1]")


class YarnScaling(RopeScaling, sees="itself", called=("YaRN",)):
    """Interpolates slow frequencies, keeps fast ones, and warms the scores [Peng et al. 2023]."""

    factor: float
    length: int  # trained on
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def check(self) -> None:
        positive(self, "factor", "beta_fast", "beta_slow")
        at_least(self, 1, "length")


class Llama3Scaling(RopeScaling, sees="itself"):
    """Three bands: fast frequencies kept, slow ones divided, smooth between [Llama 3.1, 2024]."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    length: int  # trained on

    def check(self) -> None:
        positive(self, "factor", "low_frequency_factor")
        at_least(self, 1, "length")


class Rope(AttentionPosition, sees="itself", called=("rotary", "RoFormer", "rotary position embedding")):
    """Rotary positions [Su et al. 2021]: pairs of a head's channels turn by an angle that grows with the position."""

    base: float = 10000.0
    interleaved: bool = False  # pairs are neighbours (GPT-J); otherwise channel i pairs with i + K/2 (NeoX, Llama)
    fraction: float = 1.0  # of the head's channels that turn
    scaling: RopeScaling | None = None

    def check(self) -> None:
        positive(self, "base", "fraction")
        if self.fraction > 1:
            raise ValueError(f"Rope.fraction is {self.fraction}; it must be in (0, 1]")

    def build(self, site: Site) -> nn.Module:
        width = int(site.width * self.fraction)  # an odd one is made even (GPT-NeoX), where the head has the room
        if width < 1 or width + width % 2 > site.width or (width % 2 and isinstance(self.scaling, YarnScaling)):
            raise ValueError(f"{site.address}: Rope turns pairs of channels, and {width} of {site.width} are to turn")
        if width < 3 and isinstance(self.scaling, DynamicScaling):
            raise ValueError(f"{site.address}: DynamicScaling needs more than one pair of channels that turns")
        if isinstance(self.scaling, LongScaling):
            for name in ("short", "long"):
                if (given := len(getattr(self.scaling, name))) not in (1, (width + 1) // 2):
                    raise ValueError(f"{site.address}: LongScaling.{name} has {given} factors for {width // 2} pairs")
        return RopeModule(self, site.width)


class RopeModule(AttentionPositionModule):
    def __init__(self, part: Rope, head_width: int) -> None:
        super().__init__()
        self.part, self.key = part, f"rope {part!r} {head_width}"
        self.series = int(head_width * part.fraction)  # the frequencies fall over so many channels
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
        """cos and sin of every channel, (1 or B, 1, T, width), found once for all layers: of a pair (a, b), b takes
        part in the new a with -sin, and a in the new b with sin."""

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
        """a cos - b sin and b cos + a sin of each pair (a, b), `cos` and `sin` from `pair_tables`."""
        turned, kept = (x, None) if self.width == x.shape[-1] else (x[..., : self.width], x[..., self.width :])
        if self.part.interleaved:
            other = turned.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        else:
            a, b = turned.chunk(2, dim=-1)
            other = torch.cat((b, a), dim=-1)
        new = turned * cos + other * sin
        return new if kept is None else torch.cat((new, kept), dim=-1)


def frequencies(width: int, base: float, scaling: RopeScaling | None) -> Tensor:
    """(width / 2,) radians a position, scaled; of LongScaling the short and the long ones, (2, width / 2)."""
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
        else:  # no band between
            blend = (wavelength <= scaling.length / low).float()
        return (1 - blend) * plain / scaling.factor + blend * plain
    if isinstance(scaling, YarnScaling):

        def channel(turns: float) -> float:
            """The channel pair that turns that often over the trained length."""
            return width * math.log(scaling.length / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = channel(scaling.beta_fast), channel(scaling.beta_slow)
        if scaling.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        ramp = ((torch.arange(width // 2).float() - low) / (high - low or 1e-3)).clamp(0, 1)
        return plain / scaling.factor * ramp + plain * (1 - ramp)
    return plain  # none, or dynamic before it outgrows its length


def dynamic_frequencies(width: int, base: float, scaling: DynamicScaling, length: Tensor) -> Tensor:
    """The base grows once the text is longer than the trained length; a tensor, so that nothing waits for it."""
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

    def warm(mscale: float) -> float:
        return 0.1 * mscale * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return warm(scaling.mscale) / warm(scaling.mscale_all_dim)
    return warm(1.0)
