"""Fused kernels for one token of Mamba's mixer against the plain formula: on a GPU, or in Triton's interpreter
(`TRITON_INTERPRET=1`) on any machine with Triton."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels.convolution import depthwise
from anyformer.kernels.mamba_step import conv_step, dual_step, selective_step
from anyformer.kernels.scan import scan_step
from anyformer.kernels.ssd import ssd_step
from anyformer.kernels.triton_launch import HAS_TRITON
from anyformer.parts.activation import ACTIVATIONS

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")
pytestmark = [] if INTERPRETED else [pytest.mark.gpu, needs_triton]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # one rounding of the result


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def draw(*size: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    return (torch.randn(*size, device=DEVICE) * scale).to(dtype)


def close(found: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    assert found.shape == exact.shape
    assert torch.allclose(found.double(), exact.double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "M, I, K, bias, activation", [(1, 32, 4, True, "silu"), (3, 131, 3, False, "gelu"), (2, 50, 1, True, "silu")]
)
@torch.no_grad()
def test_convolution(M: int, I: int, K: int, bias: bool, activation: str, dtype: torch.dtype) -> None:
    wide, window = draw(M, 2 * I, dtype=dtype), draw(M, K - 1, I, dtype=dtype)  # x, then the gate
    weight, offset = draw(I, 1, K, dtype=dtype, scale=0.5), draw(I, dtype=dtype) if bias else None
    tokens = torch.cat((window, wide[:, None, :I]), 1)
    exact = ACTIVATIONS[activation](depthwise(tokens, weight, offset)[:, 0])
    found = conv_step(wide, weight, offset, window, activation)
    assert found.dtype == dtype
    close(found, exact, dtype)
    assert torch.equal(window, tokens[:, 1:])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("M, I, N, R", [(1, 64, 16, 48), (3, 35, 5, 3), (2, 33, 4, 130)])
@torch.no_grad()
def test_selective_scan(M: int, I: int, N: int, R: int, dtype: torch.dtype) -> None:
    x, both, chosen = draw(M, I, dtype=dtype), draw(M, 2 * I, dtype=dtype), draw(M, R + 2 * N, dtype=dtype)
    weight, bias = draw(I, R, dtype=dtype, scale=R**-0.5), draw(I, dtype=dtype, scale=2) - 3
    bias[0] = 30.0  # softplus(x) is x here
    rate, skip, state = draw(I, N, dtype=dtype), draw(I, dtype=dtype), draw(M, N, I, dtype=torch.float32)
    step, b, c = chosen.split((R, N, N), dim=-1)
    dt = F.softplus(F.linear(step, weight).float() + bias.float())
    A = -torch.exp(rate.float()).t().contiguous()
    y, last = scan_step(x.float(), dt, A, b.float(), c.float(), state)
    exact = (torch.addcmul(y, x.float(), skip.float()) * F.silu(both[:, I:])).to(dtype)
    found = selective_step(x, both[:, I:], chosen, weight, bias, rate, skip, state)
    assert found.dtype == dtype
    close(found, exact, dtype)
    close(state, last, dtype)  # the time step was rounded


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("M, H, P, G, N", [(1, 4, 16, 1, 8), (3, 4, 35, 2, 5)])
@torch.no_grad()
def test_dual_scan(M: int, H: int, P: int, G: int, N: int, dtype: torch.dtype) -> None:
    I = H * P
    mixed, wide = draw(M, I + 2 * G * N, dtype=dtype), draw(M, I + 7 + H, dtype=dtype)
    gate, step = wide[:, :I], wide[:, -H:]  # views of the output of one product
    bias, rate, skip = draw(H, dtype=dtype), draw(H, dtype=dtype), draw(H, dtype=dtype)
    x, b, c = mixed.float().split((I, G * N, G * N), dim=-1)
    x, b, c = x.unflatten(1, (H, P)), b.unflatten(1, (G, N)), c.unflatten(1, (G, N))
    A = -torch.exp(rate.float())
    for low, high in ((0.0, float("inf")), (0.3, 0.9)):
        state = draw(M, H, P, N, dtype=torch.float32)
        dt = F.softplus(step.float() + bias.float()).clamp(low, high)
        y, last = ssd_step(x, dt, A, b, c, state)
        exact = (torch.addcmul(y, x, skip.float()[:, None]).flatten(1) * F.silu(gate.float())).to(dtype)
        found = dual_step(mixed, gate, step, bias, rate, skip, state, (low, high))
        assert found.dtype == dtype
        close(found, exact, dtype)
        close(state, last, torch.float32)
