"""Chunked cross-entropy against torch's: values and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels import loss as kernel
from anyformer.kernels.loss import cross_entropy_sum, linear_cross_entropy
from small import close

V, D = 37, 12


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(4, 9, D, generator=g).to(dtype).requires_grad_()
    weight = torch.randn(V, D, generator=g).to(dtype).requires_grad_()
    bias = torch.randn(V, generator=g).to(dtype).requires_grad_()
    labels = torch.randint(0, V, (4, 9), generator=g)
    labels[0, :4] = labels[3] = -100
    return x, weight, bias, labels


def plain(x: Tensor, w: Tensor, b: Tensor | None, labels: Tensor, smoothing: float = 0.0, z: float = 0.0) -> Tensor:
    scores = x @ w.T if b is None else x @ w.T + b
    loss = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum", label_smoothing=smoothing)
    return loss + z * scores.logsumexp(-1)[labels != -100].square().sum()


@pytest.mark.parametrize("chunk", [1, 5, 36, 1000, None])
@pytest.mark.parametrize(("smoothing", "z", "biased"), [(0.0, 0.0, False), (0.1, 0.0, True), (0.2, 1e-2, True)])
def test_equals_torch(chunk: int | None, smoothing: float, z: float, biased: bool) -> None:
    x, w, b, labels = inputs()
    given = [x, w, b] if biased else [x, w]
    bias = b if biased else None
    ours = linear_cross_entropy(x, w, labels, bias, smoothing=smoothing, z_loss=z, chunk=chunk)
    right = plain(x, w, bias, labels, smoothing, z)
    close(ours, right, 1e-6)
    # gradients are precomputed; backward multiplies them by the incoming one
    for a, c in zip(torch.autograd.grad(ours * 0.37, given), torch.autograd.grad(right * 0.37, given)):
        close(a, c, 2e-6)
    with torch.no_grad():
        close(linear_cross_entropy(x, w, labels, bias, smoothing=smoothing, z_loss=z, chunk=chunk), right, 1e-6)


def test_hand_computed() -> None:
    """Two tokens, scores (0, 0) and (ln 3, 0): -log 1/2 - log 3/4."""
    x = torch.tensor([[0.0], [1.0]])
    weight = torch.tensor([[3.0], [1.0]]).log()
    close(linear_cross_entropy(x, weight, torch.tensor([1, 0])), torch.tensor(8 / 3).log())


def test_a_frozen_weight_gets_no_gradient() -> None:
    x, w, b, labels = inputs()
    frozen = w.detach()
    (by_x,) = torch.autograd.grad(linear_cross_entropy(x, frozen, labels, chunk=7), [x])
    close(by_x, torch.autograd.grad(plain(x, frozen, None, labels), [x])[0], 2e-6)
    assert not by_x[3].any() and not by_x[0, :4].any() and by_x[1].all()


def test_no_label_gives_zero() -> None:
    x, w, b, labels = inputs()
    total = linear_cross_entropy(x, w, torch.full_like(labels, -100), b)
    assert total.item() == 0
    assert not any(g.any() for g in torch.autograd.grad(total, [x, w, b]))
    assert float(linear_cross_entropy(x[:0], w, labels[:0], b)) == 0


@pytest.mark.parametrize("chunk", [5, None])
def test_bfloat16_sums_in_float32(chunk: int | None) -> None:
    """Under autocast, the only error is one rounding of the products; the gradient of the weights is fp32."""
    x, w, b, labels = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        ours = linear_cross_entropy(x, w, labels, b, chunk=chunk)
    right = plain(x, w, b, labels)
    assert ours.dtype == torch.float32
    close(ours, right, 1e-2)
    for a, c in zip(torch.autograd.grad(ours, [x, w, b]), torch.autograd.grad(right, [x, w, b])):
        assert a.dtype == torch.float32
        close(a, c, 2e-2)
    half = inputs(torch.bfloat16)
    total = linear_cross_entropy(half[0], half[1], half[3], half[2], chunk=chunk)
    assert [g.dtype for g in torch.autograd.grad(total, half[:3])] == [torch.bfloat16] * 3


def test_a_thousand_chunks_lose_nothing() -> None:
    """1,000 bf16 chunks whose weight gradients are each below the rounding of their sum."""
    x = torch.ones(1000, 1, dtype=torch.bfloat16)
    w = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    (gradient,) = torch.autograd.grad(linear_cross_entropy(x, w, torch.zeros(1000, dtype=torch.long), chunk=1), [w])
    assert gradient.flatten().tolist() == [-500, 500]


def test_memory_is_one_chunk() -> None:
    """No tensor contains all scores: the largest has as many rows as a chunk."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            largest = max(largest, out.numel() if isinstance(out, Tensor) else 0)
            return out

    x, w = torch.randn(512, 4), torch.randn(1000, 4)
    with Watch():  # calls the inner function, whose operations can be observed
        kernel._by_chunks(x, w, None, torch.randint(0, 1000, (512,)), 0.1, 0.0, 16, x.dtype, [True, True, False])
    assert largest == 16 * 1000


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=[pytest.mark.slow, pytest.mark.compiler])]
)
def test_compiles_whole(backend: str) -> None:
    x, w, b, labels = inputs()

    def ours(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return linear_cross_entropy(x, w, labels, b, smoothing=0.1, z_loss=1e-3, chunk=7)

    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, backend=backend)(x, w, b)
    close(compiled, ours(x, w, b))
    for a, c in zip(torch.autograd.grad(compiled, [x, w, b]), torch.autograd.grad(ours(x, w, b), [x, w, b])):
        close(a, c, 2e-6)


@pytest.mark.parametrize("bad", [V, -1, -101])
def test_an_invalid_label_is_one_line(bad: int) -> None:
    x, w, b, labels = inputs()
    labels[1, 1] = bad
    with pytest.raises(ValueError, match=f"label {bad} is outside the vocabulary of {V}"):
        linear_cross_entropy(x, w, labels)
    with pytest.raises(ValueError, match="35 labels for 36 tokens"):
        linear_cross_entropy(x, w, labels.flatten()[1:])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_odd_vocabularies_are_padded(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kernel.ROWS, device, 64)
    x, w, b, labels = (t.detach().to(device).requires_grad_(t.is_floating_point()) for t in inputs())
    ours, right = linear_cross_entropy(x, w, labels, b, smoothing=0.1, chunk=5), plain(x, w, b, labels, 0.1)
    close(ours, right, 1e-5)
    for a, c in zip(torch.autograd.grad(ours, [x, w, b]), torch.autograd.grad(right, [x, w, b])):
        close(a, c, 1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("smoothing, z_loss", [(0.0, 0.0), (0.1, 1e-3)])
def test_half_precision_on_cuda(smoothing: float, z_loss: float, compiled: bool) -> None:
    """bf16 scores, several chunks and ignored labels: equals torch in fp64 up to bf16's rounding."""
    torch.manual_seed(0)
    x = torch.randn(1000, 64, device="cuda", requires_grad=True)
    w = torch.randn(5001, 64, device="cuda", requires_grad=True)
    labels = torch.randint(0, 5001, (1000,), device="cuda")
    labels[::7] = -100

    def ours(x: Tensor, w: Tensor) -> Tensor:
        return linear_cross_entropy(x * 1.0, w, labels, smoothing=smoothing, z_loss=z_loss, chunk=300)

    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = (torch.compile(ours, fullgraph=True) if compiled else ours)(x, w)
    scores = x.double() @ w.double().T
    right = F.cross_entropy(scores, labels, reduction="sum", label_smoothing=smoothing)
    right = right + z_loss * scores.logsumexp(-1)[labels != -100].square().sum()
    assert abs(found.double() / right - 1) < 2e-3
    for a, c in zip(torch.autograd.grad(found, [x, w]), torch.autograd.grad(right, [x, w])):
        assert (a - c).norm() < 0.02 * c.norm()


@pytest.mark.parametrize("ignored", [-100, 3])
def test_scores_to_loss_equals_torch(ignored: int) -> None:
    scores, labels = torch.randn(7, 300, requires_grad=True), torch.randint(0, 300, (7,))
    labels[2] = ignored
    close(
        cross_entropy_sum(scores, labels, ignored),
        F.cross_entropy(scores, labels, ignore_index=ignored, reduction="sum"),
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("N", "size"), [(512, 30522), (33, 1000)])
def test_scores_to_loss_on_a_gpu(N: int, size: int, dtype: torch.dtype) -> None:
    """In half precision, against fp64; the factor above the loss has more digits than bf16 can hold."""
    scores = (3 * torch.randn(N, size, device="cuda")).to(dtype).requires_grad_()
    labels = torch.randint(0, size, (N,), device="cuda")
    labels[: N // 2] = -100
    exact = scores.detach().double().requires_grad_()
    loss = cross_entropy_sum(scores, labels) / 4915
    right = F.cross_entropy(exact, labels, reduction="sum") / 4915
    assert abs(loss.item() - right.item()) < 1e-5 * right.item()
    (found,), (wanted,) = torch.autograd.grad(loss, [scores]), torch.autograd.grad(right, [exact])
    assert found.dtype == dtype and not found[: N // 2].any()
    close(found.double(), wanted, 2.0**-8 * wanted.abs().max().item())
    if dtype == torch.bfloat16:  # small values underflow in fp16
        others = wanted > 0  # gradients of all scores except the labels': of many sizes, so that rounding averages out
        ratio = (found[others].double().sum() / wanted[others].sum()).item()
        assert abs(ratio - 1) < 5e-4  # a factor rounded to bf16 is off by 1.5e-3
