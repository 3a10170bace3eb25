"""Sinkhorn attention against its formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from anyformer.parts.attention.sinkhorn import SinkhornAttention
from small import Weights, close, context, made, numbers

D, H, K, b, L = 12, 3, 4, 4, 24


def module_of(**fields: Any) -> Any:
    return made(SinkhornAttention(**{"num_heads": H, "length": L, "block": b, "rounds": 3, **fields}), D)


def by_hand(module: Any, x: torch.Tensor) -> torch.Tensor:
    """One block and head at a time; missing tokens of the last block are 0 in the mixture and not visible."""
    B, T, _ = x.shape
    n = -(-T // b)
    q, k, v = (F.pad(layer(x), (0, 0, 0, n * b - T)).unflatten(-1, (H, K)) for layer in (module.q, module.k, module.v))
    sums = torch.stack([x[:, i * b : (i + 1) * b].sum(1) for i in range(n)], 1)
    scores = module.order(torch.relu(module.inner(sums))).unflatten(-1, (H, -1))  # (B, n, H, N)
    out = torch.zeros(B, n * b, H, K)
    for h in range(H):
        mix = (scores[:, :, h, :n] / 0.75).exp()
        for _ in range(module.part.rounds):
            mix = mix / mix.sum(1, keepdim=True)
            mix = mix / mix.sum(2, keepdim=True)
        for i in range(n):
            mixed = [sum(mix[:, i, j, None, None] * t[:, j * b : (j + 1) * b, h] for j in range(n)) for t in (k, v)]
            some, own = min(b, T), slice(i * b, min((i + 1) * b, T))
            keys, values = (torch.cat((m[:, :some], t[:, own, h]), 1) for m, t in zip(mixed, (k, v)))
            weights = (q[:, own, h] @ keys.mT / K**0.5).softmax(-1)
            out[:, own, h] = weights @ values
    return module.o(out[:, :T].flatten(2))


@pytest.mark.parametrize("length", [16, 14, 3])
def test_formula(length: int) -> None:
    module, x = module_of(), numbers(2, length, D)
    expected, shown = by_hand(module, x), Weights()
    for kernel in ("auto", "eager"):
        close(module(x, context(length, kernel=kernel)), expected, 1e-5)
    close(module(x, context(length, taps=shown)), expected, 1e-5)
    if length == 16:
        close(shown[0].sum(-1), torch.ones(2, H, length), 1e-5)


def test_texts_end() -> None:
    with pytest.raises(ValueError, match="^here reads texts of at most 24 tokens, got 25"):
        module_of()(numbers(1, 25, D), context(25))


def test_one_block_is_plain_attention_and_many_rounds_a_permutation() -> None:
    module, x = module_of(block=L), numbers(2, 9, D)
    q, k, v = (layer(x).unflatten(-1, (H, K)).transpose(1, 2) for layer in (module.q, module.k, module.v))
    out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    close(module(x, context(9)), module.o(out))
    module = module_of(rounds=200).train()
    order = module.sort_matrix(numbers(2, 5, D), torch.ones(2, 5, dtype=torch.bool))
    close(order.sum(-1), torch.ones(2, H, 5), 1e-5)
    close(order.sum(-2), torch.ones(2, H, 5), 1e-3)
