"""The selective scan: one function in three forms, against each other and against the published slow path."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels import scan as kernel

SHAPES = [(2, 17, 8, 4), (3, 1, 5, 2), (2, 100, 6, 1), (3, 75, 40, 16)]  # B, T, I, N
PLANS = {
    "as it is": {},
    "many windows": {"SLAB": 64, "WINDOW": 420, "SEGMENTS": 2},
    "one row": {"SLAB": 1, "WINDOW": 1},
}


def make(B: int, T: int, I: int, N: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    A = -torch.arange(1, N + 1, dtype=dtype)[:, None] * (0.5 + torch.rand(I, generator=generator, dtype=dtype))
    made = [normal(B, T, I), F.softplus(normal(B, T, I) - 2), A, normal(B, T, N), normal(B, T, N), normal(B, N, I)]
    return [tensor.requires_grad_() for tensor in made]


def run(form: Any, inputs: list[Tensor], keep: Tensor | None) -> tuple[Tensor, ...]:
    """Outputs and gradients."""
    y, last = form(*inputs, keep=keep)
    weights = [torch.randn(t.shape, generator=torch.Generator().manual_seed(1), dtype=t.dtype) for t in (y, last)]
    grads = torch.autograd.grad((y * weights[0]).sum() + (last * weights[1]).sum(), inputs)
    return y, last, *grads


def close(a: Tensor, b: Tensor, tolerance: float = 1e-5) -> None:
    assert a.shape == b.shape and a.dtype == b.dtype
    assert (a - b).abs().max() <= tolerance * max(1.0, float(b.detach().abs().max()))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_windows_equal_steps(shape, documents, plan, monkeypatch) -> None:
    for name, value in plan.items():
        monkeypatch.setattr(kernel, name, value)
    inputs = make(*shape)
    keep = (torch.rand(shape[:2], generator=torch.Generator().manual_seed(2)) > 0.2).float() if documents else None
    for a, b in zip(run(kernel.scan, inputs, keep), run(kernel.scan_by_steps, inputs, keep), strict=True):
        close(a, b)


def test_windows_are_cut_as_meant(monkeypatch) -> None:
    """The shapes above cover every way to cut windows."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    plans = []
    for plan in PLANS.values():
        with monkeypatch.context() as patch:
            for name, value in plan.items():
                patch.setattr(kernel, name, value)
            plans += [kernel.ScanPlan(torch.empty(B, T, I), N) for B, T, I, N in SHAPES]
    assert any(p.segments > 1 and p.windows > 1 and p.padded > p.T for p in plans)
    assert any(p.segments == 1 and p.windows > 1 and p.T % p.steps for p in plans)
    assert any(p.rows > 1 for p in plans) and any(p.rows == 1 for p in plans)


def test_gradients_are_those_of_the_formula() -> None:
    inputs = make(2, 7, 3, 2, torch.float64)
    keep = torch.tensor([[1, 1, 0, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1, 1]], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *t: kernel.scan(*t, keep=keep), inputs)
    assert torch.autograd.gradcheck(lambda *t: kernel.scan(*t), inputs[:-1])


def test_state_is_carried_from_call_to_call() -> None:
    *inputs, state = (t.detach() for t in make(2, 20, 6, 4))
    y, last = kernel.scan(*inputs, state=state)
    found = []
    for piece in (slice(0, 9), slice(9, 10), slice(10, 20)):
        part = [t if t.dim() == 2 else t[:, piece] for t in inputs]
        out, state = kernel.scan(*part, state=state)
        found.append(out)
    close(torch.cat(found, 1), y)
    close(state, last)


def test_no_decay_is_too_strong_or_too_weak() -> None:
    x, dt, A, b, c, state = (t.detach() for t in make(1, 2048, 8, 4))
    for rate in (1e-8, 1.0, 1e4):
        inputs = [x, dt, A * rate, b, c, state]
        exact = kernel.scan_by_steps(*(t.double() for t in inputs))
        for a, e in zip(kernel.scan(*inputs), exact, strict=True):
            assert a.isfinite().all()
            close(a.double(), e)


def published(x: Tensor, dt: Tensor, A: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    x, dt, b, c = (t.transpose(1, 2) for t in (x, dt, b, c))
    y, last = mamba_selective_scan(x, dt, A.t(), b, c, return_last_state=True)
    return y.transpose(1, 2), last.transpose(1, 2)


def test_equals_the_published_slow_path() -> None:
    pytest.importorskip("transformers")
    inputs = make(2, 100, 24, 16)[:-1]
    for a, b in zip(kernel.scan(*inputs), published(*inputs), strict=True):
        close(a, b)


@pytest.mark.slow
def test_twenty_times_faster_than_the_published_loop() -> None:
    """A training step over 1024 tokens, in processor time so that a busy machine does not matter."""
    pytest.importorskip("transformers")
    inputs = make(1, 1024, 64, 16)[:-1]

    def seconds(form: Any) -> float:
        start = time.process_time()
        torch.autograd.grad(form(*inputs)[0].sum(), inputs)
        return time.process_time() - start

    ours = min(seconds(kernel.scan) for _ in range(3))
    theirs = seconds(published)
    print(f"training at 1024: {ours * 1e3:.0f} ms, published loop {theirs * 1e3:.0f} ms, {theirs / ours:.0f} times")
    assert theirs > 20 * ours


def test_is_an_operator_for_compilers() -> None:
    for train in (False, True):
        inputs = [t.detach().requires_grad_(train) for t in make(2, 20, 6, 4)]
        if train:  # the memory layout of a convolution's output
            inputs[:2] = [transposed(t) for t in inputs[:2]]
        torch.library.opcheck(torch.ops.anyformer.selective_scan.default, (*inputs, torch.ones(2, 20), train))


def transposed(x: torch.Tensor) -> torch.Tensor:
    """Return the same numbers with the last two dimensions swapped in memory."""
    return x.detach().mT.contiguous().mT.requires_grad_(x.requires_grad)


@pytest.mark.gpu
@pytest.mark.skipif(not (torch.cuda.is_available() and kernel.HAS_TRITON), reason="needs a CUDA GPU and Triton")
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("shape", [*SHAPES, (2, 300, 70, 16)], ids=str)
def test_one_program_on_cuda(shape: tuple[int, ...], documents: bool) -> None:
    """The Triton kernels equal fp64 steps (outputs and all gradients), and two runs are identical."""
    wide = make(*shape, dtype=torch.float64)
    keep = (torch.rand(shape[:2], generator=torch.Generator().manual_seed(2)) > 0.2).double() if documents else None
    given = [t.detach().float().cuda().requires_grad_() for t in wide]
    kept = None if keep is None else keep.float().cuda()
    right = run(kernel.scan_by_steps, wide, keep)

    def ours() -> tuple[Tensor, ...]:
        y, last = kernel.scan(*given, keep=kept)
        draws = [torch.Generator().manual_seed(1) for _ in (y, last)]  # as `run` draws them
        above = [torch.randn(t.shape, generator=g, dtype=torch.float64) for t, g in zip((y, last), draws)]
        total = sum((t * w.float().cuda()).sum() for t, w in zip((y, last), above))
        return y, last, *torch.autograd.grad(total, given)

    assert kernel.has_fused_kernel(given[0])
    for a, b, again in zip(ours(), right, ours(), strict=True):
        assert torch.equal(a, again)
        assert (a.cpu() - b).abs().max() < 1e-5 * max(1.0, float(b.detach().abs().max()))
