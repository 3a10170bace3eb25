"""Mamba-2's recurrence: one function in three forms, against each other and against the published slow path."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import small
from anyformer.kernels import ssd as kernel

close = functools.partial(small.close, tolerance=1e-5)

SHAPES = [(2, 17, 4, 3, 2, 5), (3, 1, 2, 2, 1, 3), (2, 200, 6, 8, 3, 4), (2, 65, 4, 4, 4, 1)]  # B, T, H, P, G, N


def make(B: int, T: int, H: int, P: int, G: int, N: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    x, dt, A = normal(B, T, H, P), F.softplus(normal(B, T, H) - 2), -torch.arange(1, H + 1, dtype=dtype)
    return [t.requires_grad_() for t in (x, dt, A, normal(B, T, G, N), normal(B, T, G, N), normal(B, H, P, N))]


def run(form: Any, inputs: list[Tensor], keep: Tensor | None) -> tuple[Tensor, ...]:
    """Outputs and gradients."""
    y, last = form(*inputs, keep=keep)
    weights = [torch.randn(t.shape, generator=torch.Generator().manual_seed(1)).to(t.dtype) for t in (y, last)]
    return y, last, *torch.autograd.grad((y * weights[0]).sum() + (last * weights[1]).sum(), inputs)


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chunks_equal_steps(shape, documents) -> None:
    inputs = make(*shape)
    keep = (torch.rand(shape[:2], generator=torch.Generator().manual_seed(2)) > 0.1).float() if documents else None
    for a, b in zip(run(kernel.ssd, inputs, keep), run(kernel.ssd_by_steps, inputs, keep), strict=True):
        close(a, b)


def test_gradients_are_those_of_the_formula() -> None:
    inputs = make(2, 7, 2, 2, 1, 2, torch.float64)
    keep = torch.tensor([[1, 1, 0, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1, 1]], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *t: kernel.ssd(*t, keep=keep), inputs)
    assert torch.autograd.gradcheck(lambda *t: kernel.ssd(*t), inputs[:-1])


def test_state_is_carried_from_call_to_call() -> None:
    *inputs, state = (t.detach() for t in make(2, 90, 4, 3, 2, 5))
    y, last = kernel.ssd(*inputs, state=state)
    found = []
    for piece in (slice(0, 70), slice(70, 71), slice(71, 90)):
        part = [t if t.dim() == 1 else t[:, piece] for t in inputs]
        out, state = kernel.ssd(*part, state=state)
        found.append(out)
    close(torch.cat(found, 1), y)
    close(state, last)


def test_no_decay_is_too_strong_or_too_weak() -> None:
    """Tokens with total decay are followed by tokens with almost no decay; both are computed accurately."""
    x, dt, A, b, c, state = (t.detach() for t in make(1, 512, 4, 3, 2, 5))
    dt[:, ::7] *= 1e4
    for rate in (1e-8, 1.0, 1e4):
        inputs = [x, dt, A * rate, b, c, state]
        exact = kernel.ssd_by_steps(*(t.double() for t in inputs))
        for a, e in zip(kernel.ssd(*inputs), exact, strict=True):
            assert a.isfinite().all()
            close(a.double(), e)


def test_equals_the_published_slow_path() -> None:
    published = pytest.importorskip("transformers.models.mamba2.modeling_mamba2").mamba2_chunk_scan
    inputs = make(2, 100, 8, 4, 2, 16)[:-1]
    theirs = published(*inputs, chunk_size=32, return_final_states=True)
    for a, b in zip(kernel.ssd(*inputs), theirs, strict=True):
        close(a, b)
