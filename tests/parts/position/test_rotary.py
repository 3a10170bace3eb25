"""Rotary positions against their formula [Su et al. 2021], pair by pair."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anyformer.parts.position.rotary import Rope
from anyformer.runtime.context import Context
from anyformer.specs.part import Site


def formula(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate each pair (a, b) of rotary channels by its own angle."""
    width = 2 * cos.shape[-1]
    turned, kept = x[..., :width], x[..., width:]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    new = (a * cos - b * sin, b * cos + a * sin)
    both = torch.stack(new, -1).flatten(-2) if interleaved else torch.cat(new, -1)
    return torch.cat((both, kept), -1)


@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("fraction", (1.0, 0.5))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_pairs_turn_exactly_as_the_formula(interleaved: bool, fraction: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = Rope(interleaved=interleaved, fraction=fraction).build(Site(width=12))
    index = torch.arange(7)
    ctx = Context(index=index, positions=index[None])
    q, k = (torch.randn(2, heads, 7, 12, dtype=dtype, requires_grad=True) for heads in (4, 2))
    cos, sin = module.tables(ctx, dtype)
    for x, new in zip((q, k), module.rotate(q, k, ctx), strict=True):
        wanted = formula(x, cos, sin, interleaved)
        assert torch.equal(new, wanted), "not a bit may differ"
        above = torch.randn_like(new)
        (found,) = torch.autograd.grad(new, x, above, retain_graph=True)
        (expected,) = torch.autograd.grad(wanted, x, above, retain_graph=True)
        torch.testing.assert_close(found, expected)
