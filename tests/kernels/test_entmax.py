"""Entmax and sparsemax against their definition, whose threshold is found by bisection in fp64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.kernels.attention import EVERYTHING, Plan, attend
from anyformer.kernels.entmax import entmax, sparsemax
from anyformer.parts.attention.attention import Attention
from anyformer.parts.attention.memory_compressed import BlockAttention
from anyformer.parts.attention.scores import Entmax, Normalizer, Sparsemax
from anyformer.parts.mask import Causal
from small import Weights, close, compiled_equals_eager, context, made
from swaps import plain, stirred

BOTH = pytest.mark.parametrize(("function", "alpha"), [(entmax, 1.5), (sparsemax, 2.0)])


def bisect(x: Tensor, alpha: float) -> Tensor:
    """max((alpha - 1) x - tau, 0) ^ (1 / (alpha - 1)), with tau such that the sum is 1."""
    z = (alpha - 1) * x.double()
    high = z.amax(-1, keepdim=True)
    low = high - 1
    for _ in range(60):
        tau = (low + high) / 2
        over = ((z - tau).clamp(min=0) ** (1 / (alpha - 1))).sum(-1, keepdim=True) > 1
        low, high = torch.where(over, tau, low), torch.where(over, high, tau)
    return (z - low).clamp(min=0) ** (1 / (alpha - 1))


@BOTH
def test_the_definition(function, alpha: float) -> None:
    x = torch.randn(6, 50, generator=torch.Generator().manual_seed(0)) * torch.tensor([[0.001, 0.3, 1, 3, 30, 1e4]]).T
    x[2, 5:] = torch.finfo(torch.float32).min  # masked
    x[3, 7] = x[3].max() + 0.1
    x[1, :4] = x[1, 4]  # ties
    p = function(x)
    close(p, bisect(x, alpha).float(), 2e-6)
    close(p.sum(-1), torch.ones(6), 2e-6)
    zeros = (p == 0).sum(-1)
    assert zeros[0] == 0 and zeros[2] >= 45 and zeros[5] == 49
    close(function(x.double()), bisect(x, alpha), 1e-10)
    assert function(x[:, :1]).eq(1).all()  # a single key


@BOTH
def test_gradients(function, alpha: float) -> None:
    x = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert ((p := function(x)) == 0).any() and (p > 0).sum() > 8
    assert torch.autograd.gradcheck(function, x)


@pytest.mark.parametrize(("normalizer", "alpha"), [(Entmax(), 1.5), (Sparsemax(), 2.0)])
def test_attention(normalizer: Normalizer, alpha: float) -> None:
    """Attention weights, cached decoding, blocks and compiled code."""
    D, T, x = 16, 9, torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(2)) * 3
    module, weights = made(Attention(num_heads=4, mask=Causal(), normalizer=normalizer), D), Weights()
    out = module(x, context(T, taps=weights))
    q, k, v = (layer(x).unflatten(-1, (4, 4)).transpose(1, 2) for layer in (module.q, module.k, module.v))
    scores = (q @ k.mT / 2).masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), -1e4)
    expected = bisect(scores, alpha).float()
    close(weights[0], expected, 1e-5)
    close(out, module.o((expected @ v).transpose(1, 2).flatten(2)), 1e-5)
    assert (weights[0] == 0).sum() > 2 * 4 * T * (T - 1) / 2  # more zeros than the mask causes
    blocks = made(BlockAttention(num_heads=4, size=3, normalizer=normalizer), D)
    close(blocks(x, context(T)), torch.cat([module(part, context(3)) for part in x.split(3, 1)], 1), 1e-5)
    compiled_equals_eager(lambda x: module(x, context(T)), x)
    model = stirred(af.override(plain(), {"decoder.layers.attention.op.normalizer": normalizer})).eval()
    ids = torch.arange(1, 6)[None]
    written = [af.generate(model, ids, max_new_tokens=5, do_sample=False, use_cache=cached) for cached in (True, False)]
    assert torch.equal(*written)


def test_softmax_is_as_before() -> None:
    q, k, v = torch.randn(3, 1, 2, 4, 8).unbind(0)
    close(attend(q, k, v, EVERYTHING, Plan(1.0, kernel="eager")), attend(q, k, v, EVERYTHING, Plan(1.0)))
    assert made(Attention(num_heads=4), 16).normalizer is None
    with pytest.raises(ValueError, match="Attention.normalizer.*soft.*Normalizer"):
        Attention(num_heads=4, normalizer="soft")  # type: ignore[arg-type]
