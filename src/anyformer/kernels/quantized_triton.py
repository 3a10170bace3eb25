"""Triton programs of `kernels/quantized.py`. Imported only if Triton is installed.

M rows of x, N outputs, K inputs. Weights are converted to floats in registers, products are summed in fp32, and scales
multiply the sums, so that no weight is rounded a second time.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_bytes(pointers, mask):
    """Load int8 or fp8 weights as fp32, without their scale."""
    return tl.load(pointers, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def load_int4(pointers, mask):
    """Load (low, high): the weights of inputs j and j + GROUP / 2 of a group as fp32 from 0 to 15, without scale and
    offset."""
    pairs = tl.load(pointers, mask=mask, other=0)
    return (pairs & 15).to(tl.float32), (pairs >> 4).to(tl.float32)


@triton.jit
def few_rows(
    x,
    weight,
    scale,
    bias,
    out,
    M,
    N,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    BIAS: tl.constexpr,
):
    """Compute COLUMNS outputs for all rows of x (at most ROWS), BLOCK inputs at a time; int8 and fp8 are exact in
    bf16."""
    m, n = tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    lines, columns = x + m[:, None] * K, weight + n.to(tl.int64)[None, :] * K
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        left = tl.load(lines + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        right = load_bytes(columns + k[:, None], (n[None, :] < N) & (k[:, None] < K))
        sums = tl.dot(left, right.to(left.dtype), sums, input_precision="ieee")
    sums *= tl.load(scale + n, mask=n < N, other=0.0)[None, :]
    if BIAS:
        sums += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    place = m[:, None] * N + n[None, :]
    tl.store(out + place, sums.to(out.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def few_rows_int4(
    x,
    weight,
    scale,
    offset,
    bias,
    out,
    M,
    N,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BIAS: tl.constexpr,
):
    """Compute COLUMNS outputs for all rows of x (at most ROWS), one group at a time."""
    HALF: tl.constexpr = GROUP // 2
    GROUPS: tl.constexpr = (K + GROUP - 1) // GROUP
    m, n, j = tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, HALF)
    lines, columns = x + m[:, None] * K, weight + n.to(tl.int64)[None, :] * (GROUPS * HALF)
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for g in range(0, GROUPS):
        k = g * GROUP + j
        left = tl.load(lines + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        right = tl.load(lines + HALF + k[None, :], mask=(m[:, None] < M) & (HALF + k[None, :] < K), other=0.0)
        low, high = load_int4(columns + (g * HALF + j)[:, None], (n[None, :] < N) & (j[:, None] < HALF))
        products = tl.dot(left, low.to(left.dtype), input_precision="ieee")
        products = tl.dot(right, high.to(left.dtype), products, input_precision="ieee")
        sums += products * tl.load(scale + n * GROUPS + g, mask=n < N, other=0.0).to(tl.float32)[None, :]
        step = tl.load(offset + n * GROUPS + g, mask=n < N, other=0.0).to(tl.float32)
        sums += tl.sum(left.to(tl.float32) + right.to(tl.float32), 1)[:, None] * step[None, :]
    if BIAS:
        sums += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    place = m[:, None] * N + n[None, :]
    tl.store(out + place, sums.to(out.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))
