"""A decoding step with fused kernels equals the plain modules: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.kernels import decode, few_rows
from anyformer.models import Call
from anyformer.parts.feedforward.mlp import GatedMLP
from anyformer.parts.feedforward.moe import MoE
from anyformer.parts.feedforward.routers import TopK
from anyformer.parts.mask import Causal, Window
from anyformer.transforms.decode_kernels import decode_kernels
from anyformer.transforms.quantize import quantize

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(not few_rows.HAS_TRITON, reason="needs Triton")
pytestmark = [] if INTERPRETED else [pytest.mark.gpu, needs_triton]

SMALL = {"width": 32, "decoder.depth": 2}
HEADS = {"decoder.layers.attention.op.num_heads": 2, "decoder.layers.attention.op.head_width": 16}
KV = {"decoder.layers.attention.op.num_kv_heads": 1}
WINDOW = {"decoder.layers.attention.op.mask": Causal() & Window(size=8)}
DUAL = {"num_heads": 4, "head_width": 10, "groups": 2, "states": 6, "step_high": 0.5}
CASES: dict[str, tuple[str, dict[str, Any], int]] = {  # name, changes, residual steps that are fused
    "biases and layer norm": ("gpt2", {**SMALL, **HEADS}, 4),
    "rotary, grouped, gated": ("llama3.2-1b", {**SMALL, **HEADS, **KV}, 4),
    "window": ("llama3.2-1b", {**SMALL, **HEADS, **KV, **WINDOW}, 4),
    "biased projections": ("qwen2-7b", {**SMALL, **HEADS, **KV}, 4),
    "norm after the sum": ("gpt1", {**SMALL, **HEADS}, 4),
    "experts": ("mixtral-8x7b", {**SMALL, **HEADS, **KV, "decoder.layers.feedforward.op.expert.width": 24}, 4),
    "experts beside a shared one": (
        "mixtral-8x7b",
        {
            **SMALL,
            **HEADS,
            **KV,
            "decoder.layers.feedforward.op": MoE(
                num_experts=6,
                router=TopK(top_k=3, groups=2, top_groups=1),
                expert=GatedMLP(width=24, activation="gelu"),
                shared=GatedMLP(width=20, activation="silu"),
            ),
        },
        4,
    ),
    "sinks, experts without a kernel": (
        "gpt-oss-20b",
        {
            **SMALL,
            **HEADS,
            **KV,
            "decoder.pattern": ("sliding", "full"),
            "decoder.layers.feedforward.op.num_experts": 6,
        },
        2,
    ),
    "recurrence by heads": (
        "mamba2-130m",
        {**SMALL, **{f"decoder.layers.mixer.op.{k}": v for k, v in DUAL.items()}},
        2,
    ),
    "recurrence": ("mamba-130m", {**SMALL, "decoder.layers.mixer.op.width": 72}, 2),
}


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernels run on CPU tensors in Triton's interpreter."""
    if INTERPRETED:
        monkeypatch.setattr(few_rows, "fits", lambda x, rows: rows == 1 or x.dtype == torch.float16)
        monkeypatch.setattr(decode, "fits", lambda q, v: False)


@pytest.mark.parametrize("rows, dtype", [(1, torch.float32), (3, torch.float16)])
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_steps_give_the_scores_of_plain_ones(case: str, rows: int, dtype: torch.dtype) -> None:
    name, changes, fused = CASES[case]
    spec = af.override(af.spec(name), {**changes, **vocabulary(name)})
    model = af.build(spec, seed=0, device=DEVICE, dtype=dtype).eval()
    ids = torch.randint(0, 90, (rows, 12), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    states = []
    for _ in range(2):
        grown, static = model.new_state(), model.new_state(rows, 32)
        model(Call({"input_ids": ids[:, :9]}, grown))
        static.adopt(grown)
        states.append(static)
    forwards = [module.forward for module in model.modules()]
    for t in range(9, 12):  # also beyond the window
        token = ids[:, t : t + 1]
        plain = model(Call({"input_ids": token}, states[0]))["logits"].float()
        with decode_kernels(model, rows) as used:
            found = model(Call({"input_ids": token}, states[1]))["logits"].float()
        assert used.fused == fused
        assert torch.allclose(found, plain, atol=1e-4 if dtype == torch.float32 else 6e-3), (found - plain).abs().max()
    assert [module.forward for module in model.modules()] == forwards
    for mine, other in zip(states[0].tensors(), states[1].tensors(), strict=True):
        assert torch.allclose(mine.float(), other.float(), atol=1e-4 if dtype == torch.float32 else 6e-3)


@pytest.mark.parametrize("format", ["int8", "fp8"])
@torch.no_grad()
def test_weights_of_a_byte(format: str) -> None:
    name, changes, fused = CASES["rotary, grouped, gated"]
    spec = af.override(af.spec(name), {**changes, **vocabulary(name)})
    model = quantize(af.build(spec, seed=0, device=DEVICE).eval(), format=format, exact=True)
    ids = torch.randint(0, 90, (1, 4), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    states = [model.new_state(1, 32) for _ in range(2)]
    for t in range(4):
        token = ids[:, t : t + 1]
        plain = model(Call({"input_ids": token}, states[0]))["logits"]
        with decode_kernels(model, 1) as used:
            found = model(Call({"input_ids": token}, states[1]))["logits"]
        assert used.fused == fused
        assert torch.allclose(found, plain, atol=1e-4)


def vocabulary(name: str) -> dict[str, Any]:
    return {"embedding.tokens.vocab_size": 99, "head.vocab_size": 99}
