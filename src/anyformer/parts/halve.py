"""Sequences that get shorter on the way up: neighbours become one, and at the top each stands for all of them again.

B batch, T tokens, N = about T / 2, D width.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from anyformer.parts.embedding.segments import Segments, Spacing, token_spacing
from anyformer.parts.position.relative import Stride
from anyformer.runtime.context import Context
from anyformer.specs.part import Part


class Halve(Part):
    """Each two neighbours become their mean or maximum [Dai et al. 2020]. A pair with a pad in it is a pad, and a pair
    belongs to the segment of its first token."""

    by: Literal["mean", "max"] = "mean"
    first_apart: bool = True  # the first token, which stands for the whole text, has no partner
    truncate: bool = True  # then the last token is left out, so that a power of two of tokens stays one
    queries_only: bool = True  # the first layer after it still looks at the longer sequence

    def shorten(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, N, D), or (B, T) -> (B, N) of what is real."""
        body = x[:, 1 : x.shape[1] - self.truncate] if self.first_apart else x
        half = body.shape[1] // 2
        pairs = body[:, : 2 * half].unflatten(1, (half, 2))
        if x.dtype == torch.bool:
            joined = pairs.all(2)
        else:
            joined = pairs.mean(2) if self.by == "mean" else pairs.amax(2)
        left = body[:, 2 * half :]  # one without a partner
        return torch.cat((x[:, :1], joined, left) if self.first_apart else (joined, left), dim=1)

    def lengthen(self, x: Tensor, length: int, times: int) -> Tensor:
        """(B, N, D) -> (B, length, D), each token `times` times; zeros where the end was left out."""
        if times == 1:
            return x
        whole = x[:, self.first_apart :].repeat_interleave(times, dim=1)
        if self.first_apart:
            whole = torch.cat((x[:, :1], whole), dim=1)
        missing = max(length - whole.shape[1], 0)
        return torch.nn.functional.pad(whole, (0, 0, 0, missing))[:, :length]

    def step(self, x: Tensor, ctx: Context) -> tuple[Tensor, Context, Context]:
        """The shorter sequence, its context, and that of the first layer that reads it."""
        if x.shape[1] <= 1 + self.first_apart:
            return x, ctx, ctx  # nothing is left to join
        short = self.shorten(x)
        index = torch.arange(short.shape[1], device=x.device)
        first = (2 * index - int(self.first_apart)).clamp(min=0)  # where each pair's first token stood
        segments = ctx.extra(Segments)
        inner = ctx.replace(
            Spacing(2 * token_spacing(ctx)),
            *(() if segments is None else (Segments(segments.kinds[:, first]),)),
            index=index,
            positions=ctx.positions[:, first],
            shared={},
            is_token=None if ctx.is_token is None else self.shorten(ctx.is_token),
        )
        looking = ctx.replace(Stride(2), index=first, key_states=x, shared={}) if self.queries_only else inner
        return short, inner, looking
