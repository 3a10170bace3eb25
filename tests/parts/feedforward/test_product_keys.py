"""Product-key memory against a search over all slots."""

from __future__ import annotations

import pytest
import torch

import anyformer as af
from anyformer import families
from anyformer.parts.feedforward.product_keys import ProductKeyMemory
from small import close, compiled_equals_eager, context, made
from tiny import CONFIGS

D, PART = 10, ProductKeyMemory(keys=7, num_heads=3, top_k=4, query_width=8)


def test_the_best_of_all_slots() -> None:
    module, x = made(PART, D), torch.randn(2, 5, D)
    expected = torch.zeros_like(x)
    q = module.norm(module.query(x).unflatten(-1, (3, 2, 4)))
    for head in range(3):
        first, second = (q[:, :, head, i] @ module.keys[head, i].T for i in (0, 1))  # (B, T, 7)
        scores, slots = (first[..., :, None] + second[..., None, :]).flatten(2).topk(4)
        expected += torch.einsum("btk,btkd->btd", scores.softmax(-1), module.values.weight[slots])
    close(module(x, context(5)), expected)
    compiled_equals_eager(lambda x: module(x, context(5)), x)


def test_most_slots_are_idle() -> None:
    spec = af.override(families.find("gpt2").read(CONFIGS["gpt2"]), {"decoder.layers.feedforward.op": PART})
    idle = 49 - 3 * 4
    counted = af.count(spec)
    assert counted.parameters - counted.active == 2 * idle * 24


def test_keys_and_values_start_with_a_length_of_about_one() -> None:
    part = PART.replace(keys=30, query_width=32)
    spec = af.override(families.find("gpt2").read(CONFIGS["gpt2"]), {"decoder.layers.feedforward.op": part})
    op = af.build(spec, seed=0).decoder.layers[0].feedforward.op
    for vectors in (op.keys, op.values.weight):
        assert float(vectors.detach().square().sum(-1).mean()) == pytest.approx(1, rel=0.1)


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="query_width is .*even"):
        PART.replace(query_width=7)
    with pytest.raises(ValueError, match="top_k is 8; .* at most keys, 7"):
        PART.replace(top_k=8)
