"""Poolingformer: attention to a window, then to pooled keys of a larger window, token by token."""

from __future__ import annotations

import pytest
import torch

import anyformer as af
from anyformer.parts.attention.poolingformer import PoolingAttention
from anyformer.runtime.context import Context
from anyformer.specs.part import Site

T = 11


@torch.no_grad()
@pytest.mark.parametrize(
    ("window", "far", "kernel", "stride"), [(2, 4, 3, 2), (1, 1, 1, 1), (3, 20, 5, 4), (20, 2, 4, 4)]
)
def test_two_levels_token_by_token(window: int, far: int, kernel: int, stride: int) -> None:
    torch.manual_seed(0)
    part = PoolingAttention(num_heads=2, window=window, far=far, kernel=kernel, stride=stride)
    op, x = part.build(Site(width=8, address="op")).eval(), torch.randn(2, T, 8)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """One query (B, 8) and the keys it sees (B, S, 8), in two heads."""
        q, k, v = q.view(2, 2, 4), k.view(2, -1, 2, 4), v.view(2, -1, 2, 4)
        weights = (torch.einsum("bhk,bshk->bsh", q, k) / 2).softmax(1)
        return torch.einsum("bsh,bshk->bhk", weights, v).flatten(1)

    q, k, v = op.q(x), op.k(x), op.v(x)
    near = [[s for s in range(T) if abs(s - t) < window] for t in range(T)]
    y = torch.stack([attend(q[:, t], k[:, near[t]], v[:, near[t]]) for t in range(T)], 1)
    q, k, v = op.far_q(y), op.far_k(y), op.far_v(y)
    spans = [range(first, min(first + kernel, T)) for first in range(0, T, stride)]
    k, v = (torch.stack([t[:, list(span)].mean(1) for span in spans], 1) for t in (k, v))
    seen = [[m for m, span in enumerate(spans)
             if span.start < t + far and span.start + kernel - 1 > t - far] for t in range(T)]  # fmt: skip
    z = torch.stack([attend(q[:, t], k[:, seen[t]], v[:, seen[t]]) for t in range(T)], 1)
    index = torch.arange(T)
    found = op(x, Context(index=index, positions=index[None]))
    torch.testing.assert_close(found, op.o(y + z), rtol=1e-5, atol=1e-5)


def test_it_keeps_what_every_mixer_keeps() -> None:
    report = af.check(PoolingAttention(num_heads=2, window=2, far=5, kernel=3, stride=2))
    assert report.passed, str(report)
    with pytest.raises(ValueError, match="PoolingAttention.stride is .* at most kernel"):
        PoolingAttention(num_heads=2, window=2, far=4, kernel=2, stride=3)
