"""Attention with one query per row over the keys of a preallocated cache, in one pass, on CUDA with Triton.

During generation, attention is limited by reading keys and values; the usual kernels are made for many queries and
launch several programs if one is enough. Here, heads that share keys are the rows of one program, blocks of hidden keys
are not read, and long rows are split among programs and merged afterwards.

B rows, H heads, G key/value heads, R = H / G, S keys, K head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.kernels.triton_launch import HAS_TRITON, launch, shared_memory

BLOCK = 64  # keys per tile
PROGRAMS = 256  # number of programs that keeps a large GPU busy


def fits(q: Tensor, v: Tensor) -> bool:
    """Whether the kernel supports these queries and values."""
    K = q.shape[3]
    powers = 16 <= K <= 256 and K & (K - 1) == 0 and v.shape[3] == K
    return HAS_TRITON and q.is_cuda and q.shape[2] == 1 and powers and not torch.is_grad_enabled()


@torch.library.custom_op("anyformer::decode", mutates_args=())
def decode(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
    """Compute softmax(scale * q k^T + bias) v over the keys that are `seen` (1 or B, 1, 1, S), or all keys if None: q
    (B, H, 1, K), k and v (B, G, S, K), bias (1 or B, H, 1, S) -> (B, H, 1, K)."""
    from anyformer.kernels.decode_triton import attend, merge

    (B, H, _, K), (G, S) = q.shape, k.shape[1:3]
    R = H // G
    split = max(BLOCK, -(-S * B * G // PROGRAMS // BLOCK) * BLOCK)  # keys per program
    splits = -(-S // split)
    out = torch.empty(B, H, 1, K, dtype=q.dtype, device=q.device)
    rows = max(16, 1 << (R - 1).bit_length())  # a tensor core needs at least 16 rows
    by_row = 0 if seen is None or seen.shape[0] == 1 else seen.stride(0)
    by_bias = (0, 0) if bias is None else (bias.stride(0) if bias.shape[0] > 1 else 0, bias.stride(1))
    strides = (q.stride(0), q.stride(1), *k.stride()[:3], *v.stride()[:3], by_row, *by_bias)
    given = (q, k, v, q if seen is None else seen, q if bias is None else bias)
    kinds = {"SEEN": seen is not None, "BIAS": bias is not None, "num_warps": 4}
    sizes = (G, S, split, R, rows, K, BLOCK)
    if splits == 1:
        launch(attend, (B * G, 1), *given, out, out, scale, *strides, *sizes, True, **kinds)
        return out
    parts = torch.empty(B * G, splits, R, K, dtype=torch.float32, device=q.device)
    tops = torch.empty(B * G, splits, R, 2, dtype=torch.float32, device=q.device)  # highest score, sum
    launch(attend, (B * G, splits), *given, parts, tops, scale, *strides, *sizes, False, **kinds)
    launch(merge, (B * H,), parts, tops, out, splits, 1 << (splits - 1).bit_length(), R, K, num_warps=1)
    return out


@decode.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


def attends_new(heads: tuple[int, int, int], keys: Tensor) -> bool:
    """Whether `attend_new` supports these heads and keys (B, G, S, K)."""
    _, G, K = heads
    powers, many = 16 <= K <= 256 and K & (K - 1) == 0, len(keys) * G >= PROGRAMS // 4  # `decode` splits fewer rows
    return HAS_TRITON and keys.is_cuda and powers and many


def attend_new(
    qkv: Tensor,
    heads: tuple[int, int, int],
    angles: tuple[Tensor, Tensor] | None,
    interleaved: bool,
    keys: Tensor,
    values: Tensor,
    columns: Tensor,
    seen: Tensor,
    scale: float,
) -> Tensor:
    """Attention of one new token per row, with one program per key/value head: qkv (B, (H + 2 G) K) -> (B, 1, H K).

    Queries and keys get rotary positions; `angles` are cos and sin (1 or B, ..., width / 2). The new key is written to
    `keys` (B, G, S, K) at `columns` (B or 1,), the new value to `values`. The queries attend to the keys that are
    `seen` (1 or B, 1, 1, S), including the new one."""
    from anyformer.kernels.decode_triton import attend_new as program

    (B, _), (H, G, K), S = qkv.shape, heads, keys.shape[2]
    out = torch.empty(B, 1, H * K, dtype=qkv.dtype, device=qkv.device)
    cos, sin = (qkv, qkv) if angles is None else angles
    half = 0 if angles is None else cos.shape[-1]
    block = 2 * BLOCK
    while block > 16 and 5 * block * K * keys.element_size() > shared_memory(
        keys.device
    ):  # 2 key and 2 value tiles, 1 more
        block //= 2
    launch(
        program, (B * G,), qkv, cos, sin, columns, keys, values, seen, out, scale,
        half if angles is not None and cos.shape[0] > 1 else 0, 1 if columns.numel() > 1 else 0,
        *keys.stride()[:3], *values.stride()[:3], seen.stride(0) if seen.shape[0] > 1 else 0, G, S, H // G,
        max(16, 1 << (H // G - 1).bit_length()), K, half, interleaved, block, num_warps=8, num_stages=3,
    )  # fmt: skip
    return out
