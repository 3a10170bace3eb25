"""Random numbers computed from a seed and a counter, without a generator that has a state [Salmon et al. 2011]."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOW_31_BITS = 2**31 - 1  # the bits of a 64-bit number that remain after a logical shift by 33
GOLDEN = 0x9E3779B97F4A7C1  # the first 60 bits of the golden ratio's fraction: consecutive multiples are far apart


def mix(x: Tensor) -> Tensor:
    """Map 64 bits one-to-one to 64 well-mixed bits: the finalizer of MurmurHash3, two rounds of shift and product.
    torch's shift keeps the sign, which would map x and ~x to the same bits; the mask removes it."""
    for factor in (-49064778989728563, -4265267296055464877):
        x = (x ^ (x >> 33 & LOW_31_BITS)) * factor
    return x ^ (x >> 33 & LOW_31_BITS)


def draw_bits(seeds: Tensor, counters: Tensor) -> Tensor:
    """Return 64 random bits per counter (B, N), given seeds (B,) and counters (B or 1, N)."""
    return mix(seeds[:, None] + (counters + 1) * GOLDEN)


@torch.library.custom_op("anyformer::normal", mutates_args=())
def normal(seeds: Tensor, count: int) -> Tensor:
    """Return normally distributed numbers (B, count) [Box and Muller 1958] for seeds (B,), the same on every device. It
    is a custom op because torch.compile would use 32-bit integers on a GPU."""
    bits = draw_bits(mix(seeds), torch.arange(count, device=seeds.device)[None])
    high, low = ((half & LOW_31_BITS).double() * 2.0**-31 for half in (bits >> 32, bits))
    return ((-2 * torch.log(high + 2.0**-32)).sqrt() * torch.cos(2 * math.pi * low)).float()


@normal.register_fake
def _(seeds: Tensor, count: int) -> Tensor:
    return seeds.new_empty((seeds.shape[0], count), dtype=torch.float32)
