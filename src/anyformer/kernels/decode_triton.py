"""The programs of `kernels/decode.py`. Imported only where Triton is."""

from __future__ import annotations

import triton
import triton.language as tl

LOW = tl.constexpr(-1.0e30)  # a score that counts for nothing and stays finite where all scores are such


@triton.jit
def attend(
    q,
    k,
    v,
    seen,
    out,
    tops,
    scale,
    q_row,
    q_head,
    k_row,
    k_head,
    k_place,
    v_row,
    v_head,
    v_place,
    seen_row,
    G,
    S,
    SPLIT: tl.constexpr,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """One key/value head of one row, over SPLIT of its keys: its R queries as the rows of one small matrix."""
    pair, split = tl.program_id(0), tl.program_id(1)
    b, g = pair // G, pair % G
    r, c, n = tl.arange(0, ROWS), tl.arange(0, K), tl.arange(0, BLOCK)
    queries = tl.load(
        q + b * q_row + (g * R + r[:, None]) * q_head + c[None, :], mask=r[:, None] < R, other=0.0
    )  # (ROWS, K)
    keys, values = k + b.to(tl.int64) * k_row + g * k_head, v + b.to(tl.int64) * v_row + g * v_head
    top = tl.full((ROWS,), LOW, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, K), tl.float32)
    for start in range(0, SPLIT, BLOCK):
        place = split * SPLIT + start + n
        visible = tl.load(seen + b * seen_row + place, mask=place < S, other=0) != 0
        if tl.max(visible.to(tl.int32), 0) > 0:
            key = tl.load(keys + place[:, None] * k_place + c[None, :], mask=visible[:, None], other=0.0)
            score = (tl.dot(queries, tl.trans(key), input_precision="ieee") * scale).to(tl.float32)
            score = tl.where(visible[None, :], score, LOW)
            higher = tl.maximum(top, tl.max(score, 1))
            weight = tl.where(visible[None, :], tl.exp(score - higher[:, None]), 0.0)
            shrink = tl.exp(top - higher)
            value = tl.load(values + place[:, None] * v_place + c[None, :], mask=visible[:, None], other=0.0)
            total = total * shrink + tl.sum(weight, 1)
            mixed = mixed * shrink[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
            top = higher
    if WHOLE:
        mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]  # a query that sees nothing gets zeros
        to = out + (pair * R + r[:, None]) * K + c[None, :]
        tl.store(to, mixed.to(out.dtype.element_ty), mask=r[:, None] < R)
    else:
        part = (pair * tl.num_programs(1) + split) * R
        tl.store(out + (part + r[:, None]) * K + c[None, :], mixed, mask=r[:, None] < R)
        tl.store(tops + (part + r) * 2, top, mask=r < R)
        tl.store(tops + (part + r) * 2 + 1, total, mask=r < R)


@triton.jit
def merge(parts, tops, out, splits, SPLITS: tl.constexpr, R: tl.constexpr, K: tl.constexpr):
    """The parts of one head put together by how high their scores were."""
    head = tl.program_id(0)
    pair, r = head // R, head % R
    s, c = tl.arange(0, SPLITS), tl.arange(0, K)
    part = (pair * splits + s) * R + r
    top = tl.load(tops + part * 2, mask=s < splits, other=LOW)
    total = tl.load(tops + part * 2 + 1, mask=s < splits, other=0.0)
    weight = tl.exp(top - tl.max(top, 0))
    sums = tl.sum(weight * total, 0)
    mixed = tl.load(parts + part[:, None] * K + c[None, :], mask=s[:, None] < splits, other=0.0)
    mixed = tl.sum(mixed * weight[:, None], 0) / tl.where(sums > 0, sums, 1.0)
    tl.store(out + head * K + c, mixed.to(out.dtype.element_ty))
