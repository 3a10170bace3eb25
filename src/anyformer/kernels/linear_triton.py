"""Triton program of `kernels/linear.py`. Imported only if Triton is installed."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def write_and_sum(
    grad,
    inner,
    out,
    sums,
    M,
    size,
    N,
    offset,
    GELU: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write grad (M, size), times GELU's derivative at `inner` if GELU, to the columns from `offset` of out (M, N).
    Each program writes the sum of its rows to its own row of sums (blocks, N)."""
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((TILE, COLUMNS), tl.float32)  # reduced over rows once, at the end
    for start in range(0, ROWS, TILE):
        r = (tl.program_id(0) * ROWS + start + tl.arange(0, TILE)).to(tl.int64)[:, None]
        inside = (r < M) & (c < size)[None, :]
        x = tl.load(grad + r * size + c[None, :], mask=inside, other=0.0).to(tl.float32)
        if GELU:
            y = tl.load(inner + r * size + c[None, :], mask=inside, other=0.0).to(tl.float32)
            # u = 2 sqrt(2 / pi) (y + 0.044715 y^3); the derivative of y sigmoid(u) is s + y s (1 - s) du/dy
            s = tl.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y))
            x *= s + y * s * (1.0 - s) * (1.5957691216057308 * (1.0 + 0.134145 * y * y))
        tl.store(out + r * N + offset + c[None, :], x.to(out.dtype.element_ty), mask=inside)
        total += x
    tl.store(sums + tl.program_id(0) * N + offset + c, tl.sum(total, 0), mask=c < size)
