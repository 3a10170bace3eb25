"""Where a token stands. Two slots take a position scheme: the embedding (added to the input) and the attention
(rotates queries and keys, or adds a bias to the scores).

B batch, T tokens, S keys seen, H heads, K head width, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from anyformer.context import Context
from anyformer.spec import Part, Site


class Constant(nn.Module):
    """A tensor that is computed, not learned: it follows the model's device but never its dtype, and no checkpoint
    has it. On `meta` nothing is computed until the model moves to a real device."""

    value: Tensor

    def __init__(self, compute: Callable[[], Tensor]) -> None:
        super().__init__()
        self.compute = compute
        meta = torch.empty(0).device.type == "meta"
        self.register_buffer("value", torch.empty(0) if meta else compute(), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Constant:
        try:
            device = fn(self.value[:0]).device  # where the model is going
        except NotImplementedError:  # off meta
            device = fn(torch.empty(0, device="cpu")).device
        if device.type != "meta":
            with torch.device(device):
                self.value = self.compute() if self.value.device.type == "meta" else self.value.to(device)
        return self

    def forward(self) -> Tensor:
        return self.value


# -- added to the embedding -------------------------------------------------------------------------------------------


class AbsolutePosition(Part):
    """A vector a position, added to the input. The module maps positions (1 or B, T) to (1 or B, T, D)."""


class Learned(AbsolutePosition):
    """A table. `offset` rows stand before position 0 (BART's 2)."""

    length: int
    offset: int = 0

    def build(self, site: Site) -> nn.Module:
        return LearnedModule(self, site.width)


class LearnedModule(nn.Embedding):
    def __init__(self, part: Learned, width: int) -> None:
        super().__init__(part.length + part.offset, width)
        self.length, self.offset = part.length, part.offset

    def forward(self, positions: Tensor) -> Tensor:
        check_positions(positions, self.length)
        return super().forward(positions + self.offset if self.offset else positions)


def check_positions(positions: Tensor, length: int) -> None:
    """One clear line instead of an index error deep inside; nothing to check while compiling."""
    if not torch.compiler.is_compiling() and (last := int(positions.max())) >= length:
        raise ValueError(f"position {last} is beyond the model's {length} learned positions; shorten the input")


class Sinusoidal(AbsolutePosition):
    """Fixed sines and cosines, sines in the first half of the width [Vaswani et al. 2017]; with `interleaved`, in
    turn. Computed for `length` positions once; there is no limit in principle."""

    length: int
    interleaved: bool = False
    base: float = 10000.0

    def build(self, site: Site) -> nn.Module:
        return SinusoidalModule(self, site.width)


class SinusoidalModule(nn.Module):
    def __init__(self, part: Sinusoidal, width: int) -> None:
        super().__init__()
        self.part = part
        self.table = Constant(lambda: sinusoids(part.length, width, part.base, part.interleaved))

    def forward(self, positions: Tensor) -> Tensor:
        check_positions(positions, self.part.length)
        return self.table()[positions]


def sinusoids(length: int, width: int, base: float, interleaved: bool) -> Tensor:
    """(length, width), computed in fp64 because fp32 is off by 1e-5 after a few hundred positions."""
    frequency = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    pair = torch.stack((angle.sin(), angle.cos()), dim=-1 if interleaved else 1)
    return pair.flatten(1)[:, :width].float()


# -- inside the attention ---------------------------------------------------------------------------------------------


class AttentionPosition(Part):
    """A position scheme of the attention. `site.width` at build is the head width K."""


class AttentionPositionModule(nn.Module):
    def rotate(self, q: Tensor, k: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Turns the queries (B,H,T,K) and the new keys (B,G,T,K) before keys are remembered."""
        return q, k

    def bias(self, q: Tensor, places: Tensor, scale: float, ctx: Context) -> tuple[Tensor, Tensor | None]:
        """(the queries for the content term, what is added to the scaled scores: (1 or B, H, T, S)) for keys at row
        places `places` (S,)."""
        return q, None


class RopeScaling(Part):
    """How the rotary frequencies of a model are stretched beyond the length it was trained on."""


class LinearScaling(RopeScaling):
    """Positions divided by a factor [Chen et al. 2023]."""

    factor: float


class DynamicScaling(RopeScaling):
    """NTK-aware base that grows with the text once it is longer than `length`."""

    factor: float
    length: int


class YarnScaling(RopeScaling):
    """Interpolates slow frequencies, keeps fast ones, and warms the scores [Peng et al. 2023]."""

    factor: float
    length: int  # trained on
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


class Llama3Scaling(RopeScaling):
    """Three bands: fast frequencies kept, slow ones divided, smooth between [Llama 3.1, 2024]."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    length: int  # trained on


class Rope(AttentionPosition):
    """Rotary positions [Su et al. 2021]: pairs of a head's channels turn by an angle that grows with the position."""

    base: float = 10000.0
    interleaved: bool = False  # pairs are neighbours (GPT-J); otherwise channel i pairs with i + K/2 (NeoX, Llama)
    fraction: float = 1.0  # of the head's channels that turn
    scaling: RopeScaling | None = None

    def build(self, site: Site) -> nn.Module:
        return RopeModule(self, site.width)


class RopeModule(AttentionPositionModule):
    def __init__(self, part: Rope, head_width: int) -> None:
        super().__init__()
        self.part, self.key = part, f"rope {part!r} {head_width}"
        self.width = int(head_width * part.fraction)
        self.frequency = Constant(lambda: frequencies(self.width, part.base, part.scaling))
        self.attention_factor = attention_factor(part.scaling)

    def tables(self, ctx: Context, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin, (1 or B, 1, T, width / 2)."""
        frequency, scaling = self.frequency(), self.part.scaling
        if isinstance(scaling, DynamicScaling):
            frequency = dynamic_frequencies(self.width, self.part.base, scaling, ctx.positions.max() + 1)
        angle = ctx.positions[:, None, :, None].float() * frequency
        return ((angle.cos() * self.attention_factor).to(dtype), (angle.sin() * self.attention_factor).to(dtype))

    def rotate(self, q: Tensor, k: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        cos, sin = ctx.once(self.key, lambda: self.tables(ctx, q.dtype))
        return self.turn(q, cos, sin), self.turn(k, cos, sin)

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned, kept = (x, None) if self.width == x.shape[-1] else (x[..., : self.width], x[..., self.width :])
        if self.part.interleaved:
            a, b = turned.unflatten(-1, (-1, 2)).unbind(-1)
            new = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        else:
            a, b = turned.chunk(2, dim=-1)
            new = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        return new if kept is None else torch.cat((new, kept), dim=-1)


def frequencies(width: int, base: float, scaling: RopeScaling | None) -> Tensor:
    """(width / 2,) radians a position, scaled."""
    plain = 1.0 / (base ** (torch.arange(0, width, 2).float() / width))
    if isinstance(scaling, LinearScaling):
        return plain / scaling.factor
    if isinstance(scaling, Llama3Scaling):
        wavelength = 2 * math.pi / plain
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        blend = ((scaling.length / wavelength - low) / (high - low)).clamp(0, 1)  # 1: keep, 0: divide
        return (1 - blend) * plain / scaling.factor + blend * plain
    if isinstance(scaling, YarnScaling):

        def channel(turns: float) -> float:
            """The channel pair that turns that often over the trained length."""
            return width * math.log(scaling.length / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = channel(scaling.beta_fast), channel(scaling.beta_slow)
        if scaling.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        ramp = ((torch.arange(width // 2).float() - low) / max(high - low, 1e-3)).clamp(0, 1)
        return plain / scaling.factor * ramp + plain * (1 - ramp)
    return plain  # none, or dynamic before it outgrows its length


def dynamic_frequencies(width: int, base: float, scaling: DynamicScaling, length: Tensor) -> Tensor:
    """The base grows once the text is longer than the trained length; a tensor, so that nothing waits for it."""
    longest = length.clamp(min=scaling.length).float()
    growth = scaling.factor * longest / scaling.length - (scaling.factor - 1)
    base_now = base * growth ** (width / (width - 2))
    return 1.0 / (base_now ** (torch.arange(0, width, 2, device=length.device).float() / width))


def attention_factor(scaling: RopeScaling | None) -> float:
    if not isinstance(scaling, YarnScaling):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def warm(mscale: float) -> float:
        return 0.1 * mscale * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return warm(scaling.mscale) / warm(scaling.mscale_all_dim)
    return warm(1.0)


class BucketedBias(AttentionPosition):
    """One learned scalar a head and bucket of distances, finer near, coarser far [Raffel et al. 2020]."""

    num_heads: int
    num_buckets: int = 32
    max_distance: int = 128
    both_ways: bool = True  # an encoder tells left from right; a decoder never sees right

    def build(self, site: Site) -> nn.Module:
        return BucketedBiasModule(self)


class BucketedBiasModule(AttentionPositionModule):
    def __init__(self, part: BucketedBias) -> None:
        super().__init__()
        self.part = part
        self.table = nn.Embedding(part.num_buckets, part.num_heads)

    def forward(self, index: Tensor, places: Tensor) -> Tensor:
        """Query places (T,), key places (S,) -> (1, H, T, S)."""
        return self.table(self.bucket(places[None, :] - index[:, None])).permute(2, 0, 1)[None]

    def bucket(self, distance: Tensor) -> Tensor:
        """Half of the buckets hold one distance each, the rest grow logarithmically up to `max_distance`."""
        num, bucket = self.part.num_buckets, torch.zeros_like(distance)
        if self.part.both_ways:
            num //= 2
            bucket = (distance > 0).long() * num
            distance = distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        exact = num // 2
        far = torch.log(distance.float().clamp(min=1) / exact) / math.log(self.part.max_distance / exact)
        far = (exact + (far * (num - exact)).long()).clamp(max=num - 1)
        return bucket + torch.where(distance < exact, distance, far)

    def bias(self, q: Tensor, places: Tensor, scale: float, ctx: Context) -> tuple[Tensor, Tensor | None]:
        return q, self(ctx.index, places)
