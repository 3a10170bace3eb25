"""Random Feature Attention [Peng et al. 2021]: its features, and gated sums."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from anyformer.parts.attention.linear import EluFeatures, LinearAttention, RandomFeatures, SoftmaxFeatures
from anyformer.parts.mask import Causal
from anyformer.runtime.context import Context
from anyformer.specs.part import Site

FEATURES = {"fourier": RandomFeatures(count=256), "arccos": RandomFeatures(count=256, kernel="arccos"),
            "elu": EluFeatures(), "softmax": SoftmaxFeatures(count=24)}  # fmt: skip


def context(tokens: int) -> Context:
    index = torch.arange(tokens)
    return Context(index=index, positions=index[None])


def made(part: Any) -> Any:
    torch.manual_seed(0)
    module = part.build(Site(width=8, address="op"))
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.normal_()
    return module.eval()


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("tokens", [1, 9, 300])
@pytest.mark.parametrize("features", FEATURES)
def test_the_gate_is_the_recurrence_of_the_paper(features: str, tokens: int, kernel: str) -> None:
    """S = g S + (1 - g) phi(k) v and z = g z + (1 - g) phi(k), token by token; the text has several chunks."""
    part = LinearAttention(num_heads=2, features=FEATURES[features], mask=Causal(), gate=True)
    op, x = made(part).double(), torch.randn(2, tokens, 8, dtype=torch.float64)
    found = op(x, context(tokens).replace(kernel=kernel))
    q, k, v = (op.heads(layer(x)) for layer in (op.q, op.k, op.v))
    (q, _), (k, power) = op.features(q), op.features(k)
    k = k if power is None else k * power.exp()
    g = op.gate(x).sigmoid().transpose(1, 2)[..., None]  # (B, H, T, 1)
    S, z, outs = torch.zeros(2, 2, k.shape[-1], 4, dtype=x.dtype), torch.zeros(2, 2, k.shape[-1], dtype=x.dtype), []
    for t in range(tokens):
        S = g[:, :, t, None] * S + (1 - g[:, :, t, None]) * k[:, :, t, :, None] * v[:, :, t, None]
        z = g[:, :, t] * z + (1 - g[:, :, t]) * k[:, :, t]
        outs.append((q[:, :, t, None] @ S)[:, :, 0] / (q[:, :, t] * z).sum(-1, keepdim=True))
    mixed = torch.stack(outs, 1).flatten(2).nan_to_num(0.0)  # opposite directions have no positive feature in common
    torch.testing.assert_close(found, op.o(mixed), rtol=1e-7, atol=1e-7)


@torch.no_grad()
def test_many_random_features_are_the_gaussian_kernel() -> None:
    """phi(q) phi(k) is exp(q k) / e for vectors of length 1: within four standard errors of 20,000 draws."""
    op = RandomFeatures(count=20_000).build(Site(width=6))
    torch.nn.init.normal_(op.weight, generator=torch.Generator().manual_seed(0))
    torch.nn.init.ones_(op.scale)
    a, b = torch.randn(2, 50, 6, generator=torch.Generator().manual_seed(1))
    expected = ((F.normalize(a, dim=1) * F.normalize(b, dim=1)).sum(1) - 1).exp()
    found = (op(a)[0] * op(b)[0]).sum(1)
    assert (found - expected).abs().max() < 4 / math.sqrt(2 * 20_000)
    assert op(a)[0].shape[1] == RandomFeatures(count=20_000).width(6)
    # arccos: E[relu(w a) relu(w b)] = (sin t + (pi - t) cos t) / 2 pi, t the angle [Cho and Saul 2009]
    arc = RandomFeatures(count=20_000, kernel="arccos").build(Site(width=6))
    arc.load_state_dict(op.state_dict())
    t = (expected.log() + 1).acos()
    expected = (t.sin() + (math.pi - t) * t.cos()) / (2 * math.pi)
    assert ((arc(a)[0] * arc(b)[0]).sum(1) - expected).abs().max() < 4 * 1.2 / math.sqrt(20_000)


def test_a_gate_looks_back() -> None:
    with pytest.raises(ValueError, match=r"set mask=Causal\(\)"):
        LinearAttention(num_heads=2, gate=True)
    with pytest.raises(ValueError, match=r"RandomFeatures\.count"):
        RandomFeatures(count=0)
