"""Attention of one query a row over the keys of a static state, in one pass over them, on CUDA with Triton.

While a text is written, what attention costs is reading the keys and values; the usual kernels are made for many
queries and start several programs where one is enough. Heads that share keys are one program's rows; keys that nobody
may see are not read; long rows are split among programs and put together after.

B rows, H heads, G key/value heads, R = H / G, S keys, K head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.kernels.triton_launch import HAS_TRITON, launch, shared_memory

BLOCK = 64  # keys read at once
PROGRAMS = 256  # that keep a large device busy


def fits(q: Tensor, v: Tensor) -> bool:
    """Whether these are queries, and values, that the kernel is for."""
    K = q.shape[3]
    powers = 16 <= K <= 256 and K & (K - 1) == 0 and v.shape[3] == K
    return HAS_TRITON and q.is_cuda and q.shape[2] == 1 and powers and not torch.is_grad_enabled()


@torch.library.custom_op("anyformer::decode", mutates_args=())
def decode(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
    """softmax(scale * q k^T + bias) v over the keys that are seen (1 or B, 1, 1, S), or all: q (B, H, 1, K), k and v
    (B, G, S, K), bias (1 or B, H, 1, S) -> (B, H, 1, K)."""
    from anyformer.kernels.decode_triton import attend, merge

    (B, H, _, K), (G, S) = q.shape, k.shape[1:3]
    R = H // G
    split = max(BLOCK, -(-S * B * G // PROGRAMS // BLOCK) * BLOCK)  # keys of one program
    splits = -(-S // split)
    out = torch.empty(B, H, 1, K, dtype=q.dtype, device=q.device)
    rows = max(16, 1 << (R - 1).bit_length())  # what a matrix unit takes at least
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
    tops = torch.empty(B * G, splits, R, 2, dtype=torch.float32, device=q.device)  # the highest score, and the sum
    launch(attend, (B * G, splits), *given, parts, tops, scale, *strides, *sizes, False, **kinds)
    launch(merge, (B * H,), parts, tops, out, splits, 1 << (splits - 1).bit_length(), R, K, num_warps=1)
    return out


@decode.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


def attends_new(heads: tuple[int, int, int], keys: Tensor) -> bool:
    """Whether `attend_new` is for these heads and keys (B, G, S, K)."""
    _, G, K = heads
    powers, many = 16 <= K <= 256 and K & (K - 1) == 0, len(keys) * G >= PROGRAMS // 4  # fewer rows are split
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
    """Attention of a new token a row, by one program a key/value head. Of qkv (B, (H + 2 G) K) the key is turned and
    put into `keys` (B, G, S, K) at `columns` (B or 1,), the value into `values`, and the queries, turned, look at the
    keys that are seen (1 or B, 1, 1, S), their own among them -> (B, 1, H K). `angles`: cos and sin (1 or B, ...,
    width / 2)."""
    from anyformer.kernels.decode_triton import attend_new as program

    (B, _), (H, G, K), S = qkv.shape, heads, keys.shape[2]
    out = torch.empty(B, 1, H * K, dtype=qkv.dtype, device=qkv.device)
    cos, sin = (qkv, qkv) if angles is None else angles
    half = 0 if angles is None else cos.shape[-1]
    block = 2 * BLOCK
    while block > 16 and 5 * block * K * keys.element_size() > shared_memory(keys.device):  # two keys, two values, more
        block //= 2
    launch(
        program, (B * G,), qkv, cos, sin, columns, keys, values, seen, out, scale,
        half if angles is not None and cos.shape[0] > 1 else 0, 1 if columns.numel() > 1 else 0,
        *keys.stride()[:3], *values.stride()[:3], seen.stride(0) if seen.shape[0] > 1 else 0, G, S, H // G,
        max(16, 1 << (H // G - 1).bit_length()), K, half, interleaved, block, num_warps=8, num_stages=3,
    )  # fmt: skip
    return out
