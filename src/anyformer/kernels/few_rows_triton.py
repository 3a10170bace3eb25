"""Triton programs of `kernels/few_rows.py`. Imported only if Triton is installed."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def activate(x, NAME: tl.constexpr):
    """Apply an activation of parts/activation.py, in fp32."""
    if NAME == "relu":
        x = tl.maximum(x, 0.0)
    elif NAME == "relu2":
        x = tl.maximum(x, 0.0) * tl.maximum(x, 0.0)
    elif NAME == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif NAME == "gelu_tanh":
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif NAME == "quick_gelu":
        x = x * tl.sigmoid(1.702 * x)
    elif NAME == "silu":
        x = x * tl.sigmoid(x)
    elif NAME == "sigmoid":
        x = tl.sigmoid(x)
    return x


@triton.jit
def round_to(x, to):
    """Round x to the type of the pointer `to`, and return it in fp32."""
    return x.to(to.dtype.element_ty).to(tl.float32)


@triton.jit
def statistics(x, like, K, WIDTH: tl.constexpr, NORM: tl.constexpr, eps):
    """Return the mean (0 for RMSNorm) and 1 / standard deviation of a row of K, rounded to the type of `like` first."""
    c = tl.arange(0, WIDTH)
    row = round_to(tl.load(x + c, mask=c < K, other=0.0), like)
    mean = 0.0
    if NORM == "layer":
        mean = tl.sum(row, 0) / K
        row = tl.where(c < K, row - mean, 0.0)
    return mean, tl.rsqrt(tl.sum(row * row, 0) / K + eps)


@triton.jit
def apply_norm(row, mean, spread, weight, bias, c, inside, like, NORM: tl.constexpr, AFFINE: tl.constexpr):
    """Normalise columns c of a row; RMSNorm rounds before it scales."""
    row = (row - mean) * spread
    if NORM == "rms":
        row = round_to(row, like)
    if AFFINE > 0:
        row *= tl.load(weight + c, mask=inside, other=0.0).to(tl.float32)
    if AFFINE > 1:
        row += tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)
    return round_to(row, like)


@triton.jit
def normalize(
    x, out, weight, bias, eps, K, WIDTH: tl.constexpr, NORM: tl.constexpr, AFFINE: tl.constexpr, EARLY: tl.constexpr
):
    """Normalise one row (K,)."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    mean, spread = statistics(x + row * K, out, K, WIDTH, NORM, eps)
    value = round_to(tl.load(x + row * K + c, mask=c < K, other=0.0), out)
    value = apply_norm(value, mean, spread, weight, bias, c, c < K, out, NORM, AFFINE)
    tl.store(out + row * K + c, value.to(out.dtype.element_ty), mask=c < K)


@triton.jit
def int8_to_float(x, PTX: tl.constexpr):
    """int8 -> fp32. GPUs convert integers slowly. With PTX, a byte plus 128 is inserted into the lowest bits of the
    float 2**23 instead, and 2**23 + 128 is subtracted."""
    if not PTX:
        return x.to(tl.float32)
    x = tl.inline_asm_elementwise(
        """{
        .reg .b32 u;
        xor.b32 u, $4, 0x80808080;
        prmt.b32 $0, u, 0x4B000000, 0x7440;
        prmt.b32 $1, u, 0x4B000000, 0x7441;
        prmt.b32 $2, u, 0x4B000000, 0x7442;
        prmt.b32 $3, u, 0x4B000000, 0x7443;
        }""",
        "=r,=r,=r,=r,r", [x], dtype=tl.int32, is_pure=True, pack=4,
    )  # fmt: skip
    return x.to(tl.float32, bitcast=True) - 8388736.0


@triton.jit
def unpack_int4(pairs, PTX: tl.constexpr):
    """uint8 -> 16 + its low four bits and 16 + its high four bits, in fp32. With PTX, they are inserted into the first
    bits of the mantissa of the float 16, whose values are 1, 2, 4 and 8."""
    if not PTX:
        return (pairs & 15).to(tl.float32) + 16.0, (pairs >> 4).to(tl.float32) + 16.0
    low, high = tl.inline_asm_elementwise(
        """{
        .reg .b32 u, v;
        shl.b32 u, $8, 3;
        shr.b32 v, $8, 1;
        lop3.b32 u, u, 0x78787878, 0x80808080, 0xEA;
        lop3.b32 v, v, 0x78787878, 0x80808080, 0xEA;
        prmt.b32 $0, u, 0x41000000, 0x7044;
        prmt.b32 $1, u, 0x41000000, 0x7144;
        prmt.b32 $2, u, 0x41000000, 0x7244;
        prmt.b32 $3, u, 0x41000000, 0x7344;
        prmt.b32 $4, v, 0x41000000, 0x7044;
        prmt.b32 $5, v, 0x41000000, 0x7144;
        prmt.b32 $6, v, 0x41000000, 0x7244;
        prmt.b32 $7, v, 0x41000000, 0x7344;
        }""",
        "=r,=r,=r,=r,=r,=r,=r,=r,r", [pairs], dtype=(tl.int32, tl.int32), is_pure=True, pack=4,
    )  # fmt: skip
    return low.to(tl.float32, bitcast=True), high.to(tl.float32, bitcast=True)


@triton.jit
def product(rows, first, x, like, mean, spread, norm_weight, norm_bias, inside_n, K: tl.constexpr, ROWS: tl.constexpr,
            BLOCK: tl.constexpr, NORM: tl.constexpr, AFFINE: tl.constexpr, PTX: tl.constexpr):  # fmt: skip
    """Multiply ROWS rows of a weight by norm(x), x (K,): (ROWS,) in fp32. `first` has their first BLOCK columns,
    already loaded; x is rounded to the type of the pointer `like`."""
    c = tl.arange(0, BLOCK)
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in tl.static_range(0, K, BLOCK):
        k = start + c
        left = round_to(tl.load(x + k, mask=k < K, other=0.0), like)
        if NORM != "none":
            left = apply_norm(left, mean, spread, norm_weight, norm_bias, k, k < K, like, NORM, AFFINE)
        right = first
        if start > 0:
            right = tl.load(rows + k[None, :], mask=inside_n[:, None] & (k < K)[None, :], other=0.0)
        if rows.dtype.element_ty == tl.int8:
            sums += left[None, :] * int8_to_float(right, PTX)
        else:
            sums += left[None, :] * right.to(tl.float32)
    return tl.sum(sums, 1)


@triton.jit
def load_groups(rows, inside, start, GROUPS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """Load the bytes (ROWS, BLOCK, HALF) of BLOCK groups of 4-bit weights, two weights per byte
    (kernels/quantized.py)."""
    g, j = start + tl.arange(0, BLOCK), tl.arange(0, HALF)
    here = inside[:, None] & (g < GROUPS)[None, :]
    return tl.load(rows + (g[:, None] * HALF + j[None, :])[None, :, :], mask=here[:, :, None], other=0)


@triton.jit
def product_int4(rows, first, scale, offset, x, like, mean, spread, norm_weight, norm_bias, n, inside, K: tl.constexpr,
                 GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr,
                 AFFINE: tl.constexpr, PTX: tl.constexpr):  # fmt: skip
    """The same as `product` for 4-bit weights, BLOCK groups at a time. Every group has its own scale and offset."""
    HALF: tl.constexpr = GROUP // 2
    GROUPS: tl.constexpr = (K + GROUP - 1) // GROUP
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in tl.static_range(0, GROUPS, BLOCK):
        g = start + tl.arange(0, BLOCK)
        k = g[:, None] * GROUP + tl.arange(0, HALF)[None, :]  # inputs of the low four bits; the high four: + HALF
        left = round_to(tl.load(x + k, mask=k < K, other=0.0), like)
        right = round_to(tl.load(x + k + HALF, mask=k + HALF < K, other=0.0), like)
        if NORM != "none":
            left = apply_norm(left, mean, spread, norm_weight, norm_bias, k, k < K, like, NORM, AFFINE)
            left = tl.where(k < K, left, 0.0)
            k += HALF
            right = apply_norm(right, mean, spread, norm_weight, norm_bias, k, k < K, like, NORM, AFFINE)
            right = tl.where(k < K, right, 0.0)
        pairs = first
        if start > 0:
            pairs = load_groups(rows, inside, start, GROUPS, HALF, BLOCK)
        low, high = unpack_int4(pairs, PTX)
        tables, here = n[:, None] * GROUPS + g[None, :], inside[:, None] & (g < GROUPS)[None, :]
        each = tl.sum(low * left[None, :, :] + high * right[None, :, :], 2)  # (ROWS, BLOCK)
        by = tl.load(scale + tables, mask=here, other=0.0).to(tl.float32)
        plus = tl.load(offset + tables, mask=here, other=0.0).to(tl.float32) - 16.0 * by
        sums += each * by + plus * tl.sum(left + right, 1)[None, :]
    return tl.sum(sums, 1)


@triton.jit
def one_row(
    x, norm_weight, norm_bias, eps, w0, w1, w2, b0, b1, b2, s0, s1, s2, o0, o1, o2, onto, out, N0, N1, N2,
    K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, NORM: tl.constexpr,
    AFFINE: tl.constexpr, ACTIVATION: tl.constexpr, GATED: tl.constexpr, WEIGHTS: tl.constexpr, BIASES: tl.constexpr,
    ONTO: tl.constexpr, SCALED: tl.constexpr, GROUP: tl.constexpr, PTX: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute ROWS outputs of up to three concatenated weights (N, K), for one row x (K,). 8-bit weights have scales,
    4-bit weights have scales and offsets per GROUP of inputs, and BLOCK then counts groups."""
    if EARLY:
        gdc_launch_dependents()
    program, c = tl.program_id(0), tl.arange(0, BLOCK)
    weight, bias, scale, offset, N, before, start = w0, b0, s0, o0, N0, 0, program * ROWS
    has_bias = BIASES % 2
    if WEIGHTS > 1 and not GATED:
        own = tl.cdiv(N0, ROWS)
        if program >= own:
            weight, bias, scale, offset, N, before, start = w1, b1, s1, o1, N1, N0, (program - own) * ROWS
            has_bias = BIASES // 2 % 2
        if WEIGHTS > 2:
            own += tl.cdiv(N1, ROWS)
            if program >= own:
                weight, bias, scale, offset, N, before, start = w2, b2, s2, o2, N2, N0 + N1, (program - own) * ROWS
                has_bias = BIASES // 4
    n = start + tl.arange(0, ROWS)
    inside = n < N
    if GROUP > 0:
        HALF: tl.constexpr = GROUP // 2
        GROUPS: tl.constexpr = (K + GROUP - 1) // GROUP
        rows = weight + n.to(tl.int64)[:, None, None] * (GROUPS * HALF)
        first = load_groups(rows, inside, 0, GROUPS, HALF, BLOCK)
        if GATED:
            rows1 = w1 + n.to(tl.int64)[:, None, None] * (GROUPS * HALF)
            first1 = load_groups(rows1, inside, 0, GROUPS, HALF, BLOCK)
    else:
        tile = inside[:, None] & (c < K)[None, :]
        rows = weight + n.to(tl.int64)[:, None] * K
        first = tl.load(rows + c[None, :], mask=tile, other=0.0)
        if GATED:
            rows1 = w1 + n.to(tl.int64)[:, None] * K
            first1 = tl.load(rows1 + c[None, :], mask=tile, other=0.0)
    if EARLY:
        gdc_wait()
    mean, spread = 0.0, 1.0
    if NORM != "none":
        mean, spread = statistics(x, out, K, WIDTH, NORM, eps)
    if GROUP > 0:
        total = product_int4(rows, first, scale, offset, x, out, mean, spread, norm_weight, norm_bias, n, inside, K,
                             GROUP, ROWS, BLOCK, NORM, AFFINE, PTX)  # fmt: skip
    else:
        total = product(
            rows, first, x, out, mean, spread, norm_weight, norm_bias, inside, K, ROWS, BLOCK, NORM, AFFINE, PTX
        )
    if SCALED:
        total *= tl.load(scale + n, mask=inside, other=0.0).to(tl.float32)
    if has_bias:
        total += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION != "identity":
        total = activate(round_to(total, out), ACTIVATION)
    if GATED:
        if GROUP > 0:
            other = product_int4(rows1, first1, s1, o1, x, out, mean, spread, norm_weight, norm_bias, n, inside, K,
                                 GROUP, ROWS, BLOCK, NORM, AFFINE, PTX)  # fmt: skip
        else:
            other = product(
                rows1, first1, x, out, mean, spread, norm_weight, norm_bias, inside, K, ROWS, BLOCK, NORM, AFFINE, PTX
            )
        if SCALED:
            other *= tl.load(s1 + n, mask=inside, other=0.0).to(tl.float32)
        if BIASES > 1:
            other += tl.load(b1 + n, mask=inside, other=0.0).to(tl.float32)
        total = round_to(total, out) * round_to(other, out)
    if ONTO:
        total = round_to(total, x) + tl.load(onto + n, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + before + n, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def some_rows(
    x, w0, w1, w2, b0, b1, b2, onto, out, M, N0, N1, N2, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, ACTIVATION: tl.constexpr, GATED: tl.constexpr, WEIGHTS: tl.constexpr, BIASES: tl.constexpr,
    ONTO: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_N outputs of up to three concatenated weights (N, K) for BLOCK_M rows of x (M, K), on tensor
    cores."""
    if EARLY:
        gdc_launch_dependents()
    program, c = tl.program_id(0), tl.arange(0, BLOCK_K)
    weight, bias, N, before, start, has_bias = w0, b0, N0, 0, program * BLOCK_N, BIASES % 2
    total_n = N0
    if WEIGHTS > 1 and not GATED:
        total_n += N1
        own = tl.cdiv(N0, BLOCK_N)
        if program >= own:
            weight, bias, N, before, start, has_bias = w1, b1, N1, N0, (program - own) * BLOCK_N, BIASES // 2 % 2
        if WEIGHTS > 2:
            total_n += N2
            own += tl.cdiv(N1, BLOCK_N)
            if program >= own:
                weight, bias, N, before, start, has_bias = w2, b2, N2, N0 + N1, (program - own) * BLOCK_N, BIASES // 4
    n, m = start + tl.arange(0, BLOCK_N), tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside, real = n < N, m < M
    rows, left = weight + n.to(tl.int64)[:, None] * K, x + m[:, None] * K
    sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    sums1 = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    rows1 = w1 + n.to(tl.int64)[:, None] * K
    if EARLY:
        gdc_wait()
    for first in range(0, K, BLOCK_K):
        k = first + c
        if K % BLOCK_K == 0:
            tokens = tl.load(left + k[None, :], mask=real[:, None], other=0.0)
            right = tl.load(rows + k[None, :], mask=inside[:, None], other=0.0)
        else:
            tokens = tl.load(left + k[None, :], mask=real[:, None] & (k < K)[None, :], other=0.0)
            right = tl.load(rows + k[None, :], mask=inside[:, None] & (k < K)[None, :], other=0.0)
        sums = tl.dot(right, tl.trans(tokens), sums, input_precision="ieee")
        if GATED:
            if K % BLOCK_K == 0:
                right1 = tl.load(rows1 + k[None, :], mask=inside[:, None], other=0.0)
            else:
                right1 = tl.load(rows1 + k[None, :], mask=inside[:, None] & (k < K)[None, :], other=0.0)
            sums1 = tl.dot(right1, tl.trans(tokens), sums1, input_precision="ieee")
    if has_bias:
        sums += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)[:, None]
    if ACTIVATION != "identity":
        sums = activate(round_to(sums, out), ACTIVATION)
    if GATED:
        if BIASES > 1:
            sums1 += tl.load(b1 + n, mask=inside, other=0.0).to(tl.float32)[:, None]
        sums = round_to(sums, out) * round_to(sums1, out)
    places, both = m.to(tl.int64)[None, :] * total_n + (before + n)[:, None], inside[:, None] & real[None, :]
    if ONTO:
        sums = round_to(sums, x) + tl.load(onto + places, mask=both, other=0.0).to(tl.float32)
    tl.store(out + places, sums.to(out.dtype.element_ty), mask=both)


@triton.jit
def rotate(x, source, c, cos, sin, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Apply rotary positions to x, the channels c of the heads at `source`. Only the first 2 HALF channels rotate.
    Rounds where the plain formula rounds."""
    turns = c < 2 * HALF
    if INTERLEAVED:
        partner, angle, sign = c ^ 1, c // 2, (c % 2 * 2 - 1).to(tl.float32)
    else:
        upper = c >= HALF
        partner, angle = tl.where(upper, c - HALF, c + HALF), tl.where(upper, c - HALF, c)
        sign = tl.where(upper, 1.0, -1.0)
    other = tl.load(source + partner, mask=turns, other=0.0).to(tl.float32)
    by_cos = tl.load(cos + angle, mask=turns, other=1.0).to(tl.float32)
    by_sin = tl.load(sin + angle, mask=turns, other=0.0).to(tl.float32)
    new = round_to(x.to(tl.float32) * by_cos, source) + sign * round_to(other * by_sin, source)
    return tl.where(turns, new.to(source.dtype.element_ty), x)


@triton.jit
def rotate_append(
    qkv, cos, sin, columns, q, keys, values, angle_row, column_row, k_row, k_head, k_place, v_row, v_head, v_place,
    H, G, K: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Process one head of one row: rotate queries and keys, and write keys and values to their column of the cache.
    WIDTH is K rounded up to a power of 2; the first 2 HALF channels rotate."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    b, head, c = tl.program_id(0), tl.program_id(1), tl.arange(0, WIDTH)
    inside = c < K
    source = qkv + (b * (H + 2 * G) + head) * K
    x = tl.load(source + c, mask=inside, other=0.0)
    if HALF > 0 and head < H + G:
        x = rotate(x, source, c, cos + b * angle_row, sin + b * angle_row, HALF, INTERLEAVED)
    if head < H:
        tl.store(q + (b * H + head) * K + c, x, mask=inside)
    else:
        column = tl.load(columns + b * column_row)
        if head < H + G:
            to = keys + b.to(tl.int64) * k_row + (head - H) * k_head + column * k_place
        else:
            to = values + b.to(tl.int64) * v_row + (head - H - G) * v_head + column * v_place
        tl.store(to + c, x, mask=inside)


@triton.jit
def highest_of_piece(scores, best, place, V, PIECE: tl.constexpr, EARLY: tl.constexpr):
    """Find the highest of PIECE scores of one row and its index (the first of equal ones; NaN counts as the
    highest)."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = piece * PIECE + tl.arange(0, PIECE)
    x = tl.load(scores + row * V + c, mask=c < V, other=float("-inf")).to(tl.float32)
    x = tl.where(x != x, float("inf"), x)
    top = tl.max(x, 0)
    at = row * tl.num_programs(1) + piece
    tl.store(best + at, top)
    tl.store(place + at, tl.min(tl.where(x == top, c, V), 0))


@triton.jit
def take_highest(
    scores, best, place, tokens, written, count, broken, V, L, PIECES, WIDTH: tl.constexpr, EARLY: tl.constexpr
):
    """Write the most likely token of one row as the next input and as the next generated token."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    x = tl.load(best + row * PIECES + c, mask=c < PIECES, other=float("-inf"))
    at = tl.load(place + row * PIECES + c, mask=c < PIECES, other=V)
    token = tl.min(tl.where(x == tl.max(x, 0), at, V), 0)
    number = tl.load(count + row)
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(written + row * L + number, token.to(tl.int64))
    tl.store(count + row, number + 1)
    score = tl.load(scores + row * V + token).to(tl.float32)
    if score != score:
        tl.store(broken + tl.zeros((), tl.int32), 1)
