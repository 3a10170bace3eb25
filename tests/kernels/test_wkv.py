"""RWKV's weighted average: one function in three forms, against each other and against the published loop."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

import small
from anyformer.kernels import scan
from anyformer.kernels import wkv as kernel

close = functools.partial(small.close, tolerance=1e-5)

SHAPES = [(2, 17, 16), (3, 1, 5), (2, 100, 6), (3, 75, 40)]  # B, T, A
PLANS = {
    "as it is": {},
    "many windows": {"SLAB": 64, "WINDOW": 420, "SEGMENTS": 2},
    "one row": {"SLAB": 1, "WINDOW": 1},
}


def make(B: int, T: int, A: int, dtype: torch.dtype = torch.float32, size: float = 1.0) -> list[Tensor]:
    """Return decay, u, k, v and a state, with decays from almost none to total."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    state = torch.stack((normal(B, A), normal(B, A).abs() + 0.5, normal(B, A)), dim=1)
    made = [-torch.exp(2 * normal(A) - 1), normal(A), normal(B, T, A) * size, normal(B, T, A), state]
    return [tensor.requires_grad_() for tensor in made]


def run(form: Any, inputs: list[Tensor], keep: Tensor | None) -> list[Tensor]:
    """Outputs and gradients."""
    y = form(*inputs, keep=keep)
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return [y, *torch.autograd.grad((y * weight).sum(), inputs, allow_unused=True, materialize_grads=True)]


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_windows_equal_steps(shape, documents, plan, monkeypatch) -> None:
    for name, value in plan.items():
        monkeypatch.setattr(scan, name, value)
    inputs = make(*shape)
    keep = (torch.rand(shape[:2], generator=torch.Generator().manual_seed(2)) > 0.2).float() if documents else None
    for a, b in zip(run(kernel.wkv, inputs, keep), run(kernel.wkv_by_steps, inputs, keep), strict=True):
        close(a, b)


def test_gradients_are_those_of_the_formula() -> None:
    inputs = make(2, 7, 3, torch.float64)
    keep = torch.tensor([[1, 1, 0, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1, 1]], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *t: kernel.wkv(*t, keep=keep), inputs)
    assert torch.autograd.gradcheck(lambda *t: kernel.wkv(*t), inputs[:-1])


def test_state_is_carried_from_call_to_call() -> None:
    """The state in closed form equals the state after the steps, and the next call continues from it."""
    decay, u, k, v, state = (t.detach() for t in make(2, 20, 6))
    y, walked = kernel.wkv(decay, u, k, v, state), state
    for t in range(20):
        _, walked = kernel.wkv_step(decay, u, k[:, t], v[:, t], walked)
    found = []
    for piece in (slice(0, 9), slice(9, 10), slice(10, 20)):
        found.append(kernel.wkv(decay, u, k[:, piece], v[:, piece], state))
        n = found[-1].shape[1]
        state = kernel.wkv_last(decay, k[:, piece], v[:, piece], state, torch.tensor([[n, *range(n - 1, -1, -1)]]))
    close(torch.cat(found, 1), y)
    close(state[:, 0] / state[:, 1], walked[:, 0] / walked[:, 1])
    close(state[:, 2] + state[:, 1].log(), walked[:, 2] + walked[:, 1].log())


@pytest.mark.parametrize("size", [*(pytest.param(size, marks=pytest.mark.slow) for size in (1.0, 10.0)), 300.0])
def test_no_key_is_too_large(size: float) -> None:
    """Both forms equal the definition in fp64 up to the fp32 rounding of keys of this size."""
    inputs = [t.detach().requires_grad_() for t in make(1, 2048, 8, size=size)]
    exact = run(kernel.wkv_by_steps, [t.detach().double().requires_grad_() for t in inputs], None)
    for form in (kernel.wkv, kernel.wkv_by_steps):
        for a, e in zip(run(form, inputs, None), exact, strict=True):
            assert a.isfinite().all()
            close(a.double(), e, tolerance=1e-6 * max(size, 5))


def test_equals_the_published_loop() -> None:
    published = pytest.importorskip("transformers.models.rwkv.modeling_rwkv").rwkv_linear_attention_cpu
    decay, u, k, v, _ = make(2, 100, 24)
    y, _ = published((-decay).log(), u, k, v)
    close(kernel.wkv(decay, u, k, v), y)


def test_is_an_operator_for_compilers() -> None:
    for train in (False, True):
        decay, u, k, v, state = (t.detach().requires_grad_(train) for t in make(2, 20, 6))
        turned = k.detach().mT.contiguous().mT.requires_grad_(train)
        for given in (k, turned):
            torch.library.opcheck(
                torch.ops.anyformer.wkv.default, (decay, u, given, v, state, torch.ones(2, 20), train)
            )
