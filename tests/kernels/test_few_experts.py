"""Fused kernels for experts of few rows against the plain modules: on a GPU, or in Triton's interpreter
(`TRITON_INTERPRET=1`) on any machine with Triton."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch
from torch import Tensor

from anyformer.kernels import few_experts
from anyformer.kernels.triton_launch import HAS_TRITON
from anyformer.parts.feedforward.mlp import MLP, GatedMLP
from anyformer.parts.feedforward.moe import ExpertsModule, MoE
from anyformer.parts.feedforward.routers import Routing, TopK

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")
pytestmark = [] if INTERPRETED else [pytest.mark.gpu, needs_triton]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # two roundings: experts and their sum


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def draw(*size: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    return (torch.randn(*size, device=DEVICE) * scale).to(dtype)


def close(found: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    assert found.shape == exact.shape
    assert torch.allclose(found.double(), exact.double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("M, E, k", [(1, 8, 2), (5, 60, 6), (3, 3, 3)])
@torch.no_grad()
def test_the_best_experts_are_chosen(M: int, E: int, k: int, score: str) -> None:
    logits = draw(M, E)
    scores = logits.softmax(-1) if score == "softmax" else logits.sigmoid()
    for normalize, scale in ((True, 1.0), (False, 2.5)):
        exact = scores.topk(k).values
        exact = exact / exact.sum(-1, keepdim=True) if normalize else exact
        experts, weights = few_experts.choose(logits, k, score, normalize, scale)
        assert torch.equal(experts.long(), scores.topk(k).indices)
        assert torch.allclose(weights, exact * scale, atol=1e-6)
    logits[0] = float("nan")
    assert int(few_experts.choose(logits, k, score, True, 1.0)[0].max()) < E  # other kernels use it as an index


# one row: odd sizes, split sums, no gate; several rows: an expert without rows, a row without an expert
CASES = [(1, 20, 33, 4, 2, True), (1, 64, 1100, 3, 3, True), (1, 40, 16, 2, 1, False), (3, 20, 33, 7, 2, True),
         (19, 32, 1100, 3, 2, False), (5, 17, 40, 2, 1, True)]  # fmt: skip


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("M, D, inner, E, k, gated", CASES)
@torch.no_grad()
def test_experts(M: int, D: int, inner: int, E: int, k: int, gated: bool, dtype: torch.dtype) -> None:
    if M > 1 and (dtype == torch.float32 or (INTERPRETED and dtype == torch.bfloat16)):
        return  # torch multiplies several rows in fp32; the interpreter has no bf16 matrix products
    kind = GatedMLP(width=inner, activation="silu", bias=M == 3) if gated else MLP(width=inner, activation="gelu")
    module = ExpertsModule(MoE(num_experts=E, router=TopK(top_k=k), expert=kind), D).to(DEVICE, dtype)
    for weight in module.parameters():
        weight.copy_(draw(*weight.shape, scale=weight.shape[-2] ** -0.5))
    x, chosen = draw(M, D, dtype=dtype), torch.rand(M, E, device=DEVICE).topk(k).indices
    weights = torch.rand(M, k, device=DEVICE)
    if M > 3:
        chosen[1, 0], weights[1, 0] = E, 0.0  # no expert
    exact = module(x, Routing(chosen, weights, weights))
    layers = module.up, module.up_bias, module.down
    sums = few_experts.expert_rows(x, chosen, *layers, "silu" if gated else "gelu", gated)
    close(few_experts.combine(sums, chosen, weights, module.down_bias, E, dtype), exact, dtype)
    beside, onto = draw(M, D, dtype=dtype), draw(M, D)  # the stream has a wider dtype than the weights
    found = few_experts.combine(sums, chosen, weights, module.down_bias, E, dtype, beside, onto)
    assert found.dtype == torch.float32
    close(found, onto + (exact + beside), dtype)
