"""The Weighted Transformer's attention against its formula, and transparent attention."""

from __future__ import annotations

import pytest
import torch

from anyformer.parts.attention.attention import Attention
from anyformer.parts.attention.transparent import TransparentAttention
from anyformer.parts.attention.weighted_transformer import BranchedAttention
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.layer_mix import LayerMix
from anyformer.runtime.context import Memory
from anyformer.specs.part import Site
from small import close, compiled_equals_eager, context, filled, made

D, H, K, T = 12, 3, 4, 5


def test_branches() -> None:
    """sum_i a_i FFN(k_i head_i O_i), where a and k add up to 1 [Ahmed et al. 2017]"""
    module = made(BranchedAttention(num_heads=H, bias="", feedforward=MLP(width=20, activation="relu", bias=False)), D)
    x = torch.randn(2, T, D)
    q, k, v = (each(x).unflatten(-1, (H, K)) for each in (module.q, module.k, module.v))
    weights = (torch.einsum("bthk,bshk->bhts", q, k) / K**0.5).softmax(-1)
    expected = torch.zeros_like(x)
    for i in range(H):
        head = torch.einsum("bts,bsk->btk", weights[:, i], v[:, :, i])
        branch = module.before.softmax(0)[i] * (head @ module.o.weight[:, i * K : (i + 1) * K].T)
        inner = torch.relu(branch @ module.feedforward.up.weight.T) @ module.feedforward.down.weight.T
        expected += module.after.softmax(0)[i] * inner
    close(module(x, context(T)), expected)
    compiled_equals_eager(lambda x: module(x, context(T)), x)


def test_a_memory_for_each_layer() -> None:
    """Layer 1 of 3 attends to the second third of the memory's width, as if it were the whole memory."""
    states, x = torch.randn(2, 7, 3 * D), torch.randn(2, T, D)
    part = TransparentAttention(num_heads=H, memory=True, memory_width=3 * D)
    site = Site(width=D, layer=1, depth=3, address="here")
    module, plain = filled(part.build(site)), filled(Attention(num_heads=H, memory=True).build(site))
    own = context(T, memory=Memory(states[..., D : 2 * D]))
    close(module(x, context(T, memory=Memory(states))), plain(x, own))
    with pytest.raises(ValueError, match=r"memory_width is 24; .* 3 \* 12"):
        part.replace(memory_width=2 * D).build(site)
    with pytest.raises(ValueError, match=r"memory=True and memory_width.*depth \* width"):
        TransparentAttention(num_heads=H, memory=True)


def test_averages_side_by_side() -> None:
    neck = filled(LayerMix(count=2).build(Site(width=D, depth=3)))
    states = [torch.randn(2, T, D) for _ in range(4)]
    found, _ = neck(states, context(T))
    for i, share in enumerate(neck.weight.softmax(-1)):
        close(found[..., i * D : (i + 1) * D], sum(a * x for a, x in zip(share, states)))
    assert LayerMix(count=2).out_width(D) == 2 * D
