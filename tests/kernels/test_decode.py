"""The kernel for single queries on CUDA against the eager one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anyformer.kernels import decode
from anyformer.kernels.attention import Visible, attend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or not decode.HAS_TRITON, reason="needs CUDA and Triton"),
]

SHAPES = [(1, 4, 2, 100, 16), (3, 6, 6, 256, 32), (2, 8, 1, 700, 64), (2, 32, 8, 4097, 64), (5, 16, 2, 33, 128)]


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("B, H, G, S, K", SHAPES)
@torch.no_grad()
def test_single_queries(B: int, H: int, G: int, S: int, K: int, padded: bool, dtype: torch.dtype, tolerance: float):
    generator = torch.Generator("cuda").manual_seed(S)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cuda").to(dtype)

    q, k, v = normal(B, H, 1, K), normal(B, G, S, K), normal(B, G, S, K)
    real = torch.rand(B, S, generator=generator, device="cuda") > 0.4
    real[-1] = B == 1  # a row that sees nothing gives zeros

    def allows(b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (real[b, k] if padded else k >= 0)

    place, keys = torch.tensor([S * 2 // 3], device="cuda"), torch.arange(S, device="cuda")
    visible = Visible(allows, place, keys, batch_size=B if padded else 1)
    assert decode.fits(q, v)
    expected = attend(q.float(), k.float(), v.float(), visible, scale=K**-0.5, kernel="eager")
    found = decode.decode(q, k, v, visible.dense(), K**-0.5)
    assert (found.float() - expected).abs().max() < tolerance
    v[:, :, S * 2 // 3 + 1 :] = float("nan")  # what is not seen is not read
    assert torch.equal(decode.decode(q, k, v, visible.dense(), K**-0.5), found)
