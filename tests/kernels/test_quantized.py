"""Products with 8- and 4-bit weights: Triton programs against the plain formula, on a GPU or interpreted."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from anyformer.kernels import quantized
from anyformer.kernels.quantized import dequantize, launch, plain_linear, quantized_linear

INTERPRETER = "TRITON_INTERPRET"
HAS_TRITON = importlib.util.find_spec("triton") is not None
ON_GPU = HAS_TRITON and torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
programs = pytest.mark.skipif(
    not ON_GPU and not (HAS_TRITON and os.environ.get(INTERPRETER) == "1"),
    reason="needs Triton, and CUDA or its interpreter (TRITON_INTERPRET=1)",
)
FORMATS = ("int8", "fp8", "int4")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def rounded(weight: torch.Tensor, kind: str, group: int = 32) -> tuple[torch.Tensor, ...]:
    """weights, scale, offset"""
    if kind == "int4":
        return quantized.round_int4(weight, group)
    return *(quantized.round_int8 if kind == "int8" else quantized.round_fp8)(weight), None


def case(N: int, K: int, M: int, kind: str, dtype: torch.dtype, bias: bool, group: int = 32):
    torch.manual_seed(0)
    tensors = rounded(torch.randn(N, K, device=DEVICE), kind, group)
    b = torch.randn(N, device=DEVICE).to(dtype) if bias else None
    x = torch.randn(M, 1, K, device=DEVICE).to(dtype)
    wide, added = dequantize(*tensors, K).double(), torch.zeros(N, device=DEVICE) if b is None else b.double()
    exact = F.linear(x.double(), wide, added.double())
    return x, tensors, b, exact, F.linear(x.double().abs(), wide.abs(), added.double().abs())


def check(found: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype, size: torch.Tensor) -> None:
    """Sums are in fp32, so the error is the rounding of the result and of sums as large as `size` = |x| |w|."""
    assert found.dtype == dtype and found.shape == exact.shape
    assert (
        (found - exact).abs() <= exact.abs() * torch.finfo(dtype).eps + 4 * torch.finfo(torch.float32).eps * size
    ).all()


@programs
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("N, K, M", [(7, 33, 1), (65, 300, 1), (3, 9000, 1), (7, 33, 2), (35, 300, 5), (17, 256, 33)])
def test_programs(N: int, K: int, M: int, kind: str, dtype: torch.dtype) -> None:
    if M > 1 and dtype == torch.bfloat16 and not ON_GPU:
        pytest.skip("Triton's interpreter has no matrix products of bf16")
    x, tensors, bias, exact, size = case(N, K, M, kind, dtype, bias=N % 2 == 1)
    check(launch(x, *tensors, bias), exact, dtype, size)


@programs
@pytest.mark.parametrize("M", [1, 3])
@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_groups(group: int, M: int) -> None:
    x, tensors, bias, exact, size = case(20, 700, M, "int4", torch.float32, True, group)
    assert tensors[1].shape == (20, -(-700 // group))
    check(launch(x, *tensors, bias), exact, torch.float32, size)


@pytest.mark.gpu
@programs
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("M", [1, 2, 16, 33, 64])
@pytest.mark.parametrize("N, K", [(3072, 2048), (2049, 8192), (1, 5000), (50257, 768)])
def test_large(N: int, K: int, M: int, kind: str, dtype: torch.dtype) -> None:
    x, tensors, bias, exact, size = case(N, K, M, kind, dtype, True, 128)
    check(quantized_linear(x, *tensors, bias), exact, dtype, size)


@pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")
@pytest.mark.skipif(ON_GPU or os.environ.get(INTERPRETER) == "1", reason="the tests above ran as they are")
def test_in_the_interpreter() -> None:
    """Runs the tests above in a new process, because Triton chooses its interpreter at import."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "programs or groups"]
    done = subprocess.run(command, env={**os.environ, INTERPRETER: "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "53 passed" in done.stdout, done.stdout[-3000:]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("N, K, M", [(7, 33, 1), (35, 300, 5)])
def test_plain(N: int, K: int, M: int, kind: str, dtype: torch.dtype) -> None:
    """The plain formula, which runs on any device and rounds weights or sums to the type of x."""
    x, tensors, bias, exact, size = case(N, K, M, kind, dtype, bias=N == 7)
    for found in (
        plain_linear(x, *tensors, bias),
        quantized_linear(x.cpu(), *(t if t is None else t.cpu() for t in (*tensors, bias))),
    ):
        assert found.dtype == dtype
        assert float((found.to(DEVICE) - exact).abs().max() / exact.abs().max()) < 2 * torch.finfo(dtype).eps + 1e-6


def test_int4_rounds_to_the_nearest_of_16() -> None:
    torch.manual_seed(0)
    weight = torch.randn(6, 100)
    weight[1, :32], weight[2, 40] = 0, 30  # a group of zeros, and a group with an outlier
    bytes_, scale, offset = quantized.round_int4(weight, 32)
    assert bytes_.dtype == torch.uint8 and bytes_.shape == (6, 64) and scale.shape == offset.shape == (6, 4)
    found = dequantize(bytes_, scale, offset, 100)
    levels = offset.float()[..., None] + scale.float()[..., None] * torch.arange(16)  # (6, 4, 16)
    padded = F.pad(weight, (0, 28)).view(6, 4, 32)
    nearest = (padded[..., None] - levels[:, :, None]).abs().amin(-1).flatten(1)[:, :100]
    torch.testing.assert_close((found - weight).abs(), nearest)
    assert torch.equal(found[1, :32], weight[1, :32])
    assert float(bytes_[:, :16].int().bitwise_and(15).max()) == 15, "the whole range is used"


def test_int4_clips_where_it_helps() -> None:
    torch.manual_seed(0)
    weight = torch.randn(64, 512)
    error = (dequantize(*quantized.round_int4(weight, 128), 512) - weight).norm()
    least, most = weight.view(64, 4, 128).aminmax(dim=-1, keepdim=True)
    step = (most - least) / 15
    whole = (((weight.view(64, 4, 128) - least) / step).round() * step + least).flatten(1)
    assert error < 0.96 * (whole - weight).norm()
