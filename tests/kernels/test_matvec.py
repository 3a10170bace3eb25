"""A linear layer of one row on CUDA against torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from anyformer.kernels import matvec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or not matvec.HAS_TRITON, reason="needs CUDA and Triton"),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("N, K", [(3072, 2048), (2049, 8192), (7, 33), (1, 5000), (50257, 768)])
@torch.no_grad()
def test_one_row(N: int, K: int, bias: bool, dtype: torch.dtype):
    torch.manual_seed(0)
    weight, x = torch.randn(N, K, device="cuda").to(dtype), torch.randn(1, 1, K, device="cuda").to(dtype)
    b = torch.randn(N, device="cuda").to(dtype) if bias else None
    assert matvec.fits(x, weight)
    found, exact = matvec.matvec(x, weight, b), F.linear(x.double(), weight.double(), None if b is None else b.double())
    # sums are in fp32, so the only error is the rounding of the result
    assert found.shape == (1, 1, N)
    assert ((found - exact).abs() <= exact.abs() * torch.finfo(dtype).eps + 1e-3).all()
