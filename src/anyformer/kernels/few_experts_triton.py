"""Triton programs of `kernels/few_experts.py`. Imported only if Triton is installed."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from anyformer.kernels.few_rows_triton import activate, round_to


@triton.jit
def choose(
    logits, experts, weights, scale, E, TOP: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr,
    SOFTMAX: tl.constexpr, NORMALIZE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Choose the TOP experts of one row, the first of equal ones; WIDTH and SLOTS are E and TOP rounded up to powers of
    2."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row, c, slot = tl.program_id(0), tl.arange(0, WIDTH), tl.arange(0, SLOTS)
    x = tl.load(logits + row * E + c, mask=c < E, other=float("-inf")).to(tl.float32)
    if SOFTMAX:
        x = tl.exp(x - tl.max(x, 0))
        x = x / tl.sum(x, 0)
    else:
        x = tl.sigmoid(x)
    rest = tl.where(c < E, x, float("-inf"))
    found, values = tl.zeros((SLOTS,), tl.int32), tl.zeros((SLOTS,), tl.float32)
    for j in tl.static_range(TOP):
        at = tl.min(tl.where(rest == tl.max(rest, 0), c, E - 1), 0)  # E - 1 if all are NaN
        found = tl.where(slot == j, at, found)
        values = tl.where(slot == j, tl.sum(tl.where(c == at, x, 0.0), 0), values)
        rest = tl.where(c == at, float("-inf"), rest)
    if NORMALIZE:
        values = values / (tl.sum(values, 0) + 1e-20)
    tl.store(experts + row * TOP + slot, found, mask=slot < TOP)
    tl.store(weights + row * TOP + slot, values * scale, mask=slot < TOP)


@triton.jit
def finish(
    sums, gates, bias, n, inside, like, GAP, BIASED: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr
):
    """Apply bias, activation and gate to the sums of a layer; the bias of the gated half is GAP further. `n` has the
    shape of the sums."""
    if BIASED:
        gates += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION != "identity":
        gates = activate(round_to(gates, like), ACTIVATION)
    if GATED:
        if BIASED:
            sums += tl.load(bias + GAP + n, mask=inside, other=0.0).to(tl.float32)
        gates = round_to(gates, like) * round_to(sums, like)
    return gates


@triton.jit
def one_row(
    x, experts, weight, bias, out, E, N, K, span, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, EVEN: tl.constexpr,
    GATED: tl.constexpr, ACTIVATION: tl.constexpr, BIASED: tl.constexpr, EACH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_N outputs of one expert for one row, over `span` inputs of its matrix (K, N), or (K, 2 N) if
    GATED."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    slot, split, c = tl.program_id(1), tl.program_id(2), tl.arange(0, BLOCK_K)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    expert, inside = tl.load(experts + slot).to(tl.int64), n < N
    if expert < E:
        stride = N
        if GATED:
            stride = 2 * N
        start, end = split * span, tl.minimum(split * span + span, K)
        columns = weight + expert * K * stride + n[None, :]
        if EACH:
            x += slot * K
        gates, sums = tl.zeros((BLOCK_K, BLOCK_N), tl.float32), tl.zeros((BLOCK_K, BLOCK_N), tl.float32)
        for first in tl.range(start, end, BLOCK_K, num_stages=3):
            k = first + c
            if EVEN:
                tile = inside[None, :]
                left = tl.load(x + k).to(tl.float32)[:, None]
            else:
                tile = inside[None, :] & (k < end)[:, None]
                left = tl.load(x + k, mask=k < end, other=0.0).to(tl.float32)[:, None]
            rows = columns + k[:, None] * stride
            gates += left * tl.load(rows, mask=tile, other=0.0).to(tl.float32)
            if GATED:
                sums += left * tl.load(rows + N, mask=tile, other=0.0).to(tl.float32)
        total = finish(tl.sum(sums, 0), tl.sum(gates, 0), bias + expert * stride, n, inside, out, N, BIASED, GATED,
                       ACTIVATION)  # fmt: skip
        place = split * tl.num_programs(1) + slot
        tl.store(out + place * N + n, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def some_rows(
    x, experts, weight, bias, out, M, E, N, K, span, TOP: tl.constexpr, SLOTS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr,
    BIASED: tl.constexpr, EACH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The same as `one_row` for all rows that chose the expert, on tensor cores; the other rows are zeros."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    expert, split, c = tl.program_id(1).to(tl.int64), tl.program_id(2), tl.arange(0, BLOCK_K)
    m, j, n = tl.arange(0, BLOCK_M), tl.arange(0, SLOTS), tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    known = (m < M)[:, None] & (j < TOP)[None, :]
    mine = tl.load(experts + m[:, None] * TOP + j[None, :], mask=known, other=-1).to(tl.int64) == expert
    chose, inside = tl.max(mine.to(tl.int32), 1) > 0, n < N
    place = m * TOP + tl.sum(tl.where(mine, j[None, :], 0), 1)  # index of (row, expert slot)
    if tl.max(chose.to(tl.int32), 0) > 0:
        stride = N
        if GATED:
            stride = 2 * N
        start, end = split * span, tl.minimum(split * span + span, K)
        columns = weight + expert * K * stride + n[None, :]
        if EACH:
            left = x + place[:, None] * K
        else:
            left = x + m[:, None] * K
        gates, sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32), tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for first in range(start, end, BLOCK_K):
            k = first + c
            if EVEN:
                tile, real = inside[None, :], chose[:, None]
            else:
                tile, real = inside[None, :] & (k < end)[:, None], chose[:, None] & (k < end)[None, :]
            rows = columns + k[:, None] * stride
            tokens = tl.trans(tl.load(left + k[None, :], mask=real, other=0.0))
            gates = tl.dot(tl.trans(tl.load(rows, mask=tile, other=0.0)), tokens, gates, input_precision="ieee")
            if GATED:
                sums = tl.dot(tl.trans(tl.load(rows + N, mask=tile, other=0.0)), tokens, sums, input_precision="ieee")
        total = finish(sums, gates, bias + expert * stride, n[:, None], inside[:, None], out, N, BIASED, GATED,
                       ACTIVATION)  # fmt: skip
        to = out + (split * M * TOP + place).to(tl.int64)[None, :] * N + n[:, None]
        tl.store(to, total.to(out.dtype.element_ty), mask=inside[:, None] & chose[None, :])


@triton.jit
def combine(
    sums, experts, weights, bias, beside, onto, like, out, M, E, D, SPLITS, TOP: tl.constexpr, BLOCK: tl.constexpr,
    BIASED: tl.constexpr, BESIDE: tl.constexpr, ONTO: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK outputs of one row."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row, d = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = d < D
    total = tl.zeros((BLOCK,), tl.float32)
    for j in tl.static_range(TOP):
        place = row * TOP + j
        expert, weight = tl.load(experts + place).to(tl.int64), tl.load(weights + place).to(tl.float32)
        here, y = inside & (expert < E), tl.zeros((BLOCK,), tl.float32)
        for split in range(SPLITS):
            y += tl.load(sums + (split * M * TOP + place) * D + d, mask=here, other=0.0)
        y = round_to(y, like)
        if BIASED:
            y = round_to(y + tl.load(bias + expert * D + d, mask=here, other=0.0).to(tl.float32), like)
        total += tl.where(here, round_to(weight * y, weights), 0.0)
    total = round_to(total, like)
    if BESIDE:
        total = round_to(total + tl.load(beside + row * D + d, mask=inside, other=0.0).to(tl.float32), like)
    if ONTO:
        total += tl.load(onto + row * D + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * D + d, total.to(out.dtype.element_ty), mask=inside)
