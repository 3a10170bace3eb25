"""Latent attention: its cache, and that the expanded and the absorbed path give the same result."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from anyformer.parts.attention.latent import LatentAttention
from anyformer.parts.mask import Causal
from anyformer.parts.position.absolute import Alibi
from anyformer.parts.position.relative import InputRope
from anyformer.parts.position.rotary import Rope
from anyformer.runtime.state import State
from anyformer.runtime.stores import PerToken
from small import Weights, close, context, made

PART = LatentAttention(
    num_heads=3, rank=10, query_rank=7, head_width=5, rotary_width=4, value_width=6, bias=True, mask=Causal(),
    position=Rope(interleaved=True),
)  # fmt: skip
D, T = 16, 9


def state(kind: str) -> State:
    holder = nn.Module()
    holder.add_module("here", made(PART, D))
    return State.allocate(holder, 2, capacity=None if kind == "growing" else T + 2)


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["growing", "static"])
@pytest.mark.parametrize("part", [PART, PART.replace(query_rank=None, bias=False, scale=0.3)], ids=["ranked", "plain"])
def test_one_query_at_a_time_equals_all_at_once(part: LatentAttention, kind: str, kernel: str) -> None:
    module, x, memory = made(part, D), torch.randn(2, T, D), state(kind)
    watched = Weights()
    whole = module(x, context(T, kernel=kernel, taps=watched))
    weights = watched[0]
    assert module.state_spec() == PerToken({"latent": (14,)})
    for t in range(T):
        seen = Weights()
        for look in (None, seen) if kind == "static" else (seen,):
            index = torch.arange(1) + t
            ctx = context(1, kernel=kernel, state=memory, taps=look).replace(index=index, positions=index[None])
            close(module(x[:, t : t + 1], ctx), whole[:, t : t + 1], 1e-5)
        close(seen[0][..., : t + 1], weights[:, :, t : t + 1, : t + 1], 1e-5)
        memory.advance(1)
    assert memory.nbytes == 2 * (T + 2 * (kind == "static")) * 14 * 4, "10 + 4 numbers per token, for all heads"


def test_the_scale_and_the_shapes_are_checked() -> None:
    assert made(PART, D).scale == 9**-0.5 and made(PART.replace(scale=2.0), D).scale == 2.0
    with pytest.raises(ValueError, match="rank is 0"):
        PART.replace(rank=0)
    with pytest.raises(ValueError, match="pairs of channels"):
        made(PART.replace(rotary_width=3), D)


def test_only_a_rotation_of_queries_and_keys_is_taken() -> None:
    with pytest.raises(ValueError, match="LatentAttention.position: Alibi is not of type Rope; valid: "):
        PART.replace(position=Alibi(num_heads=3))
    with pytest.raises(ValueError, match="LatentAttention.position is InputRope.*use Rope"):
        PART.replace(position=InputRope())
