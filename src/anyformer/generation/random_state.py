"""Random numbers for sampling, which depend only on a seed, a position in the text and a token.

A counter-based generator [Salmon et al. 2011] has no state. Samples therefore do not depend on the other rows of the
batch, on padding, on whether a text is continued later, or on whether a different model drafts it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from anyformer.specs.messages import quote

LOW_31_BITS = 2**31 - 1  # the bits of a 64-bit number that remain after a logical shift by 33


def mix(x: Tensor) -> Tensor:
    """Map 64 bits one-to-one to 64 well-mixed bits: the finalizer of MurmurHash3, two rounds of shift and product.
    torch's shift keeps the sign, which would map x and ~x to the same bits; the mask removes it."""
    for factor in (-49064778989728563, -4265267296055464877):
        x = (x ^ (x >> 33 & LOW_31_BITS)) * factor
    return x ^ (x >> 33 & LOW_31_BITS)


def spread(seeds: Tensor, numbers: Tensor) -> Tensor:
    """Return 64 random bits (B, N), given seeds (B,) and numbers (B or 1, N)."""
    return mix(seeds[:, None] + (numbers + 1) * 0x9E3779B97F4A7C1)


@torch.library.custom_op("anyformer::normal", mutates_args=())
def normal(seeds: Tensor, count: int) -> Tensor:
    """Return normally distributed numbers (B, count) [Box and Muller 1958] of seeds (B,), equal on every device. It is
    a custom op because torch.compile would use 32-bit integers on a GPU."""
    bits = spread(mix(seeds), torch.arange(count, device=seeds.device)[None])
    high, low = ((half & LOW_31_BITS).double() * 2.0**-31 for half in (bits >> 32, bits))
    return ((-2 * torch.log(high + 2.0**-32)).sqrt() * torch.cos(2 * math.pi * low)).float()


@normal.register_fake
def _(seeds: Tensor, count: int) -> Tensor:
    return seeds.new_empty((seeds.shape[0], count), dtype=torch.float32)


class SeededRows:
    """One seed per row. With a single `seed`, all prompts share it, and each of the `copies` of a prompt differs."""

    def __init__(self, seed: int | Sequence[int] | None, rows: int, copies: int, device: torch.device) -> None:
        if seed is None:
            seeds = torch.randint(2**62, (rows,)).tolist()
        else:
            seeds = [seed] * rows if isinstance(seed, int) else list(seed)
        if len(seeds) != rows:
            raise ValueError(f"seed={quote(seed)}: pass one number, or one for each of the {rows} prompts")
        rows_ = torch.tensor(seeds, dtype=torch.long).repeat_interleave(copies)
        copy = torch.arange(copies).repeat(rows)
        self.seeds = mix(mix(rows_) + copy).to(device)  # (rows * copies,)

    def gumbel(self, places: Tensor, tokens: Tensor) -> Tensor:
        """Return Gumbel noise (B, N), given positions `places` (B,) and tokens (B or 1, N). argmax(log p + noise) is a
        sample of p."""
        bits = spread(mix(self.seeds + places), tokens)
        u = ((bits & (2**53 - 1)).double() + 0.5) * 2.0**-53
        u = u.clamp(max=1 - 2.0**-53)  # if all bits are 1, the sum is rounded to 1 and the noise would be infinite
        return -torch.log(-torch.log(u))

    def one(self, scores: Tensor, places: Tensor, top: int = 0) -> Tensor:
        """Sample a token per row (B,) from softmax of scores (B, V); `top` > 0: from the `top` likeliest only."""
        if 0 < top < scores.shape[1]:
            values, tokens = scores.topk(top)
            return tokens.gather(1, (values + self.gumbel(places, tokens)).argmax(-1, keepdim=True))[:, 0]
        return (scores + self.gumbel(places, all_tokens(scores))).argmax(-1)

    def several(self, scores: Tensor, places: Tensor, count: int) -> Tensor:
        """Sample (B, count) indices of scores (B, N) without replacement, in the order drawn [Kool et al. 2019]."""
        return (scores + self.gumbel(places, all_tokens(scores))).topk(count).indices


def all_tokens(scores: Tensor) -> Tensor:
    return torch.arange(scores.shape[1], device=scores.device)[None]
