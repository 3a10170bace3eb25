"""Triton programs of `kernels/mamba_step.py`. Imported only if Triton is installed."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from anyformer.kernels.few_rows_triton import activate, product, round_to


@triton.jit
def softplus(x):
    """Compute log(1 + e^x), accurately for small e^x too: (1 + e^x) - 1 gives the rounding error."""
    e = tl.exp(x)
    rounded = 1.0 + e
    small = tl.where(rounded == 1.0, e, tl.log(rounded) * (e / (rounded - 1.0)))
    return tl.where(x > 20.0, x, small)


@triton.jit
def conv_step(
    x, window, weight, bias, out, x_row, I, TAPS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ACTIVATION: tl.constexpr, BIASED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Process BLOCK channels of one row. WIDTH is TAPS rounded up to a power of 2."""
    if EARLY:
        gdc_launch_dependents()
    row, channel, tap = (
        tl.program_id(1).to(tl.int64),
        tl.program_id(0) * BLOCK + tl.arange(0, BLOCK),
        tl.arange(0, WIDTH),
    )
    c, t, inside = channel[None, :], tap[:, None], channel < I
    by = tl.load(weight + c * TAPS + t, mask=inside[None, :] & (t < TAPS), other=0.0).to(tl.float32)
    if EARLY:
        gdc_wait()
    held = window + row * (TAPS - 1) * I + c
    before = tl.load(held + t * I, mask=inside[None, :] & (t < TAPS - 1), other=0.0)
    new = tl.load(x + row * x_row + channel, mask=inside, other=0.0)
    value = tl.where(t == TAPS - 1, new[None, :], before)
    total = tl.sum(value.to(tl.float32) * by, 0)
    if BIASED:
        total += tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    total = activate(round_to(total, out), ACTIVATION)
    tl.store(out + row * I + channel, total.to(out.dtype.element_ty), mask=inside)
    tl.debug_barrier()  # all threads must have read the window before it is overwritten
    tl.store(held + (t - 1) * I, value, mask=inside[None, :] & (t > 0) & (t < TAPS))


@triton.jit
def selective_step(
    x, gate, chosen, weight, bias, rate, skip, state, out, gate_row, I, R: tl.constexpr, N: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, BLOCK_R: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Process BLOCK channels of one row. WIDTH is N rounded up to a power of 2."""
    if EARLY:
        gdc_launch_dependents()
    row, c, n = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    inside, r = c < I, tl.arange(0, BLOCK_R)
    tile = (n < N)[:, None] & inside[None, :]
    A = -tl.exp(tl.load(rate + c[None, :] * N + n[:, None], mask=tile, other=0.0).to(tl.float32))
    rows = weight + c[:, None] * R
    first = tl.load(rows + r[None, :], mask=inside[:, None] & (r < R)[None, :], other=0.0)
    by_bias = tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)
    by_skip = tl.load(skip + c, mask=inside, other=0.0).to(tl.float32)
    if EARLY:
        gdc_wait()
    chosen += row * (R + 2 * N)
    step = product(rows, first, chosen, out, 0.0, 1.0, weight, weight, inside, R, BLOCK, BLOCK_R, "none", 0, False)
    dt = softplus(round_to(step, out) + by_bias)
    token = tl.load(x + row * I + c, mask=inside, other=0.0).to(tl.float32)
    write = tl.load(chosen + R + n, mask=n < N, other=0.0).to(tl.float32)
    read = tl.load(chosen + R + N + n, mask=n < N, other=0.0).to(tl.float32)
    held = state + (row * N + n)[:, None] * I + c[None, :]
    h = tl.exp(dt[None, :] * A) * tl.load(held, mask=tile, other=0.0) + (dt * token)[None, :] * write[:, None]
    tl.store(held, h, mask=tile)
    y = tl.sum(h * read[:, None], 0) + token * by_skip
    open_by = activate(tl.load(gate + row * gate_row + c, mask=inside, other=0.0).to(tl.float32), "silu")
    tl.store(out + row * I + c, (y * round_to(open_by, out)).to(out.dtype.element_ty), mask=inside)


@triton.jit
def dual_step(
    mixed, gate, step, bias, rate, skip, state, out, gate_row, step_row, low, high, P, N, H: tl.constexpr,
    GROUPS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Process BLOCK channels of one head of one row. WIDTH is N rounded up to a power of 2."""
    if EARLY:
        gdc_launch_dependents()
    head, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    p, n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    inside, tile = p < P, (p < P)[:, None] & (n < N)[None, :]
    A, by_skip = -tl.exp(tl.load(rate + head).to(tl.float32)), tl.load(skip + head).to(tl.float32)
    by_bias = tl.load(bias + head).to(tl.float32)
    if EARLY:
        gdc_wait()
    dt = softplus(tl.load(step + row * step_row + head).to(tl.float32) + by_bias)
    dt = tl.minimum(tl.maximum(dt, low), high)
    mixed += row * (H * P + 2 * GROUPS * N)
    shared = mixed + H * P + head // (H // GROUPS) * N + n
    token = tl.load(mixed + head * P + p, mask=inside, other=0.0).to(tl.float32)
    write = tl.load(shared, mask=n < N, other=0.0).to(tl.float32)
    read = tl.load(shared + GROUPS * N, mask=n < N, other=0.0).to(tl.float32)
    held = state + ((row * H + head) * P + p)[:, None] * N + n[None, :]
    h = tl.exp(dt * A) * tl.load(held, mask=tile, other=0.0) + (dt * token)[:, None] * write[None, :]
    tl.store(held, h, mask=tile)
    y = tl.sum(h * read[None, :], 1) + token * by_skip
    at = head * P + p
    open_by = activate(tl.load(gate + row * gate_row + at, mask=inside, other=0.0).to(tl.float32), "silu")
    tl.store(out + row * H * P + at, (y * open_by).to(out.dtype.element_ty), mask=inside)
