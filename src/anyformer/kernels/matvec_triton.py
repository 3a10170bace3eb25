"""The program of `kernels/matvec.py`. Imported only where Triton is."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def multiply(
    x, weight, bias, out, N, stride, K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr
):
    """ROWS outputs: their rows of the weight times x, BLOCK columns at once, summed in fp32."""
    n, c = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    rows = weight + n.to(tl.int64)[:, None] * stride
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, K, BLOCK):
        k = start + c
        left = tl.load(x + k, mask=k < K, other=0.0).to(tl.float32)
        right = tl.load(rows + k[None, :], mask=(n[:, None] < N) & (k[None, :] < K), other=0.0).to(tl.float32)
        sums += left[None, :] * right
    total = tl.sum(sums, 1)
    if BIAS:
        total += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(out + n, total.to(out.dtype.element_ty), mask=n < N)
