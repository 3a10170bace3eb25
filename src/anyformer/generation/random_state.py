"""Chance: every number is a function of a seed, a place in the text and a token, and of nothing else.

A counter-based generator [Salmon et al. 2011] needs no memory, so what else is in the batch, how it is padded, whether
a text is continued later or drafted by another model cannot change what is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from anyformer.specs.messages import quote

HIGH = 2**31 - 1  # what is left of 64 bits after a shift by 33


def mix(x: Tensor) -> Tensor:
    """64 bits to 64 well mixed bits, each to its own: twice a shift and a product, as MurmurHash3 ends. torch shifts
    with the sign, which would give x and ~x the same; the mask takes it away."""
    for factor in (-49064778989728563, -4265267296055464877):
        x = (x ^ (x >> 33 & HIGH)) * factor
    return x ^ (x >> 33 & HIGH)


def spread(seeds: Tensor, numbers: Tensor) -> Tensor:
    """(B,) seeds and (B or 1, N) numbers -> (B, N) 64 bits each."""
    return mix(seeds[:, None] + (numbers + 1) * 0x9E3779B97F4A7C1)


@torch.library.custom_op("anyformer::normal", mutates_args=())
def normal(seeds: Tensor, count: int) -> Tensor:
    """(B,) seeds -> (B, count) numbers of the normal distribution [Box and Muller 1958], the same on any device. The
    compiler does not look inside: it would count in 32 bits on a GPU."""
    bits = spread(mix(seeds), torch.arange(count, device=seeds.device)[None])
    high, low = ((half & HIGH).double() * 2.0**-31 for half in (bits >> 32, bits))
    return ((-2 * torch.log(high + 2.0**-32)).sqrt() * torch.cos(2 * math.pi * low)).float()


@normal.register_fake
def _(seeds: Tensor, count: int) -> Tensor:
    return seeds.new_empty((seeds.shape[0], count), dtype=torch.float32)


class SeededRows:
    """One seed a row. With one number for all, copies of a prompt get their own, and prompts do not differ by row."""

    def __init__(self, seed: int | Sequence[int] | None, rows: int, copies: int, device: torch.device) -> None:
        if seed is None:
            seeds = torch.randint(2**62, (rows,)).tolist()
        else:
            seeds = [seed] * rows if isinstance(seed, int) else list(seed)
        if len(seeds) != rows:
            raise ValueError(f"seed={quote(seed)}: one number, or one for each of the {rows} prompts")
        rows_ = torch.tensor(seeds, dtype=torch.long).repeat_interleave(copies)
        copy = torch.arange(copies).repeat(rows)
        self.seeds = mix(mix(rows_) + copy).to(device)  # (rows * copies,)

    def gumbel(self, places: Tensor, tokens: Tensor) -> Tensor:
        """(B,) places and (B or 1, N) tokens -> (B, N) Gumbel noise: argmax(log p + noise) is a sample of p."""
        bits = spread(mix(self.seeds + places), tokens)
        u = ((bits & (2**53 - 1)).double() + 0.5) * 2.0**-53
        u = u.clamp(max=1 - 2.0**-53)  # of all ones the sum is rounded up, and the noise would be infinite
        return -torch.log(-torch.log(u))

    def one(self, scores: Tensor, places: Tensor, top: int = 0) -> Tensor:
        """(B, V) -> (B,) a token each, as likely as softmax(scores) says; `top`: no more than so many are possible."""
        if 0 < top < scores.shape[1]:
            values, tokens = scores.topk(top)
            return tokens.gather(1, (values + self.gumbel(places, tokens)).argmax(-1, keepdim=True))[:, 0]
        return (scores + self.gumbel(places, all_tokens(scores))).argmax(-1)

    def several(self, scores: Tensor, places: Tensor, count: int) -> Tensor:
        """(B, N) -> (B, count) without replacement, in the order drawn [Kool et al. 2019]."""
        return (scores + self.gumbel(places, all_tokens(scores))).topk(count).indices


def all_tokens(scores: Tensor) -> Tensor:
    return torch.arange(scores.shape[1], device=scores.device)[None]
