"""Random numbers for sampling, which depend only on a seed, a position in the text and a token.

A counter-based generator [Salmon et al. 2011] has no state. Samples therefore do not depend on the other rows of the
batch, on padding, on whether a text is continued later, or on whether a different model drafts it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anyformer.kernels.random_bits import draw_bits, mix
from anyformer.specs.messages import quote


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
        bits = draw_bits(mix(self.seeds + places), tokens)
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
