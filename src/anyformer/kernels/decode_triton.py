"""Triton programs of `kernels/decode.py`. Imported only if Triton is installed."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from anyformer.kernels.few_rows_triton import rotate

LOW = tl.constexpr(-1.0e30)  # score of hidden keys; finite, because all keys may be hidden


@triton.jit
def look(queries, key, value, visible, scale, bias, top, total, mixed):
    """Update an online softmax of queries (ROWS, K) by more keys and values (BLOCK, K): the highest score so far, the
    sum of the weights, and the sum of the weighted values."""
    score = (tl.dot(queries, tl.trans(key), input_precision="ieee") * scale).to(tl.float32) + bias
    score = tl.where(visible[None, :], score, LOW)
    higher = tl.maximum(top, tl.max(score, 1))
    weight = tl.where(visible[None, :], tl.exp(score - higher[:, None]), 0.0)
    shrink = tl.exp(top - higher)
    mixed = mixed * shrink[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
    return higher, total * shrink + tl.sum(weight, 1), mixed


@triton.jit
def attend(
    q,
    k,
    v,
    seen,
    bias,
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
    bias_row,
    bias_head,
    G,
    S,
    SPLIT: tl.constexpr,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    SEEN: tl.constexpr,
    BIAS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Process one key/value head of one row over SPLIT of its keys; its R queries are the rows of one small matrix."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
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
        visible = place < S
        if SEEN:
            visible = tl.load(seen + b * seen_row + place, mask=visible, other=0) != 0
        if tl.max(visible.to(tl.int32), 0) > 0:
            key = tl.load(keys + place[:, None] * k_place + c[None, :], mask=visible[:, None], other=0.0)
            value = tl.load(values + place[:, None] * v_place + c[None, :], mask=visible[:, None], other=0.0)
            added = tl.zeros((ROWS, BLOCK), tl.float32)
            if BIAS:
                to = bias + b * bias_row + (g * R + r[:, None]) * bias_head + place[None, :]
                added = tl.load(to, mask=(r[:, None] < R) & visible[None, :], other=0.0).to(tl.float32)
            top, total, mixed = look(queries, key, value, visible, scale, added, top, total, mixed)
    if WHOLE:
        mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]  # a query that sees no key gets zeros
        to = out + (pair * R + r[:, None]) * K + c[None, :]
        tl.store(to, mixed.to(out.dtype.element_ty), mask=r[:, None] < R)
    else:
        part = (pair * tl.num_programs(1) + split) * R
        tl.store(out + (part + r[:, None]) * K + c[None, :], mixed, mask=r[:, None] < R)
        tl.store(tops + (part + r) * 2, top, mask=r < R)
        tl.store(tops + (part + r) * 2 + 1, total, mask=r < R)


@triton.jit
def merge(parts, tops, out, splits, SPLITS: tl.constexpr, R: tl.constexpr, K: tl.constexpr, EARLY: tl.constexpr):
    """Merge the splits of one head, weighted by their highest scores."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
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


@triton.jit
def attend_new(
    qkv, cos, sin, columns, keys, values, seen, out, scale, angle_row, column_row, k_row, k_head, k_place, v_row,
    v_head, v_place, seen_row, G, S, R: tl.constexpr, ROWS: tl.constexpr, K: tl.constexpr, HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Process one key/value head of one row: write its new key and value to the cache and attend with its R queries,
    first to the new key (from registers), then to the cached keys. The first tile of the cache is read before the
    wait."""
    if EARLY:
        gdc_launch_dependents()
    pair = tl.program_id(0)
    b, g = pair // G, pair % G
    r, c, n = tl.arange(0, ROWS), tl.arange(0, K), tl.arange(0, BLOCK)
    column = tl.load(columns + b * column_row)
    old_keys, old_values = keys + b.to(tl.int64) * k_row + g * k_head, values + b.to(tl.int64) * v_row + g * v_head
    visible = (tl.load(seen + b * seen_row + n, mask=n < S, other=0) != 0) & (n != column)
    key_tile = tl.load(old_keys + n[:, None] * k_place + c[None, :], mask=visible[:, None], other=0.0)
    value_tile = tl.load(old_values + n[:, None] * v_place + c[None, :], mask=visible[:, None], other=0.0)
    if EARLY:
        gdc_wait()
    H = G * R
    row = qkv + b * (H + 2 * G) * K
    heads, own = row + (g * R + tl.where(r < R, r, 0))[:, None] * K, row + (H + g) * K
    queries, key, value = tl.load(heads + c[None, :]), tl.load(own + c), tl.load(own + G * K + c)
    if HALF > 0:
        queries = rotate(queries, heads, c[None, :], cos + b * angle_row, sin + b * angle_row, HALF, INTERLEAVED)
        key = rotate(key, own, c, cos + b * angle_row, sin + b * angle_row, HALF, INTERLEAVED)
    tl.store(old_keys + column * k_place + c, key)
    tl.store(old_values + column * v_place + c, value)
    sees_itself = tl.load(seen + b * seen_row + column) != 0  # True for nearly all masks
    top = tl.where(sees_itself, tl.sum(queries.to(tl.float32) * key.to(tl.float32)[None, :], 1) * scale, LOW)
    total = tl.zeros((ROWS,), tl.float32) + tl.where(sees_itself, 1.0, 0.0)
    mixed = tl.zeros((ROWS, K), tl.float32) + tl.where(sees_itself, value.to(tl.float32), 0.0)[None, :]
    top, total, mixed = look(queries, key_tile, value_tile, visible, scale, 0.0, top, total, mixed)
    for start in range(BLOCK, S, BLOCK):
        place = start + n
        visible = (tl.load(seen + b * seen_row + place, mask=place < S, other=0) != 0) & (place != column)
        key_tile = tl.load(old_keys + place[:, None] * k_place + c[None, :], mask=visible[:, None], other=0.0)
        value_tile = tl.load(old_values + place[:, None] * v_place + c[None, :], mask=visible[:, None], other=0.0)
        top, total, mixed = look(queries, key_tile, value_tile, visible, scale, 0.0, top, total, mixed)
    to = out + (b * H + g * R + r[:, None]) * K + c[None, :]
    mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(to, mixed.to(out.dtype.element_ty), mask=r[:, None] < R)
