"""Pooling of neighbouring tokens between layers, and repeating each pooled vector to restore the length.

B batch, T tokens, N = about T / 2, D width.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from anyformer.parts.position.relative import Stride
from anyformer.parts.position.segments import Segments, Spacing, token_spacing
from anyformer.runtime.context import Context
from anyformer.specs.part import Part


class Halve(Part):
    """Replaces each pair of neighbours by their mean or maximum [Dai et al. 2020]. A pair that contains a pad is a pad,
    and a pair belongs to the segment of its first token."""

    by: Literal["mean", "max"] = "mean"
    first_apart: bool = True  # the first token, which represents the whole text, is not pooled
    truncate: bool = True  # with first_apart: drop the last token, so that a power of two is halved exactly
    queries_only: bool = True  # the next layer pools only its queries: its keys are the longer sequence

    def shorten(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, N, D), or a mask of real tokens (B, T) -> (B, N)."""
        body = x[:, 1 : x.shape[1] - self.truncate] if self.first_apart else x
        half = body.shape[1] // 2
        pairs = body[:, : 2 * half].unflatten(1, (half, 2))
        if x.dtype == torch.bool:
            joined = pairs.all(2)
        else:
            joined = pairs.mean(2) if self.by == "mean" else pairs.amax(2)
        rest = body[:, 2 * half :]  # a token without a partner
        return torch.cat((x[:, :1], joined, rest) if self.first_apart else (joined, rest), dim=1)

    def lengthen(self, x: Tensor, length: int, times: int) -> Tensor:
        """(B, N, D) -> (B, length, D): repeat each token `times` times; zeros for dropped tokens at the end."""
        if times == 1:
            return x
        whole = x[:, self.first_apart :].repeat_interleave(times, dim=1)
        if self.first_apart:
            whole = torch.cat((x[:, :1], whole), dim=1)
        missing = max(length - whole.shape[1], 0)
        return torch.nn.functional.pad(whole, (0, 0, 0, missing))[:, :length]

    def step(self, x: Tensor, ctx: Context) -> tuple[Tensor, Context, Context]:
        """Return the shorter sequence, its context, and the context of the first layer that reads it."""
        if x.shape[1] <= 1 + self.first_apart:
            return x, ctx, ctx  # too short to pool
        short = self.shorten(x)
        index = torch.arange(short.shape[1], device=x.device)
        first = (2 * index - int(self.first_apart)).clamp(min=0)  # row index of each pair's first token
        segments = ctx.extra(Segments)
        inner = ctx.replace(
            Spacing(2 * token_spacing(ctx)),
            *(() if segments is None else (Segments(segments.kinds[:, first]),)),
            index=index,
            positions=ctx.positions[:, first],
            shared={},
            is_token=None if ctx.is_token is None else self.shorten(ctx.is_token),
        )
        first_layer = ctx.replace(Stride(2), index=first, key_states=x, shared={}) if self.queries_only else inner
        return short, inner, first_layer
