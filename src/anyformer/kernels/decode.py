"""Attention of one query a row over the keys of a static state, in one pass over them, on CUDA with Triton.

While a text is written, what attention costs is reading the keys and values; the usual kernels are made for many
queries and start several programs where one is enough. Heads that share keys are one program's rows; keys that nobody
may see are not read; long rows are split among programs and put together after.

B rows, H heads, G key/value heads, R = H / G, S keys, K head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.kernels import hardware

BLOCK = 64  # keys read at once
PROGRAMS = 256  # that keep a large device busy
HAS_TRITON = hardware.has("triton")


def fits(q: Tensor, v: Tensor) -> bool:
    """Whether these are queries, and values, that the kernel is for."""
    K = q.shape[3]
    powers = 16 <= K <= 256 and K & (K - 1) == 0 and v.shape[3] == K
    return HAS_TRITON and q.is_cuda and q.shape[2] == 1 and powers and not torch.is_grad_enabled()


@torch.library.custom_op("anyformer::decode", mutates_args=())
def decode(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    """softmax(scale * q k^T) v over the keys that are seen (1 or B, 1, 1, S): q (B, H, 1, K), k and v (B, G, S, K) ->
    (B, H, 1, K)."""
    from anyformer.kernels.decode_triton import attend, merge

    (B, H, _, K), (G, S) = q.shape, k.shape[1:3]
    R = H // G
    split = max(BLOCK, -(-S * B * G // PROGRAMS // BLOCK) * BLOCK)  # keys of one program
    splits = -(-S // split)
    out = torch.empty(B, H, 1, K, dtype=q.dtype, device=q.device)
    rows = max(16, 1 << (R - 1).bit_length())  # what a matrix unit takes at least
    strides = (q.stride(0), q.stride(1), *k.stride()[:3], *v.stride()[:3], seen.stride(0) if seen.shape[0] > 1 else 0)
    if splits == 1:
        attend[(B * G, 1)](q, k, v, seen, out, out, scale, *strides, G, S, split, R, rows, K, BLOCK, True, num_warps=4)
        return out
    parts = torch.empty(B * G, splits, R, K, dtype=torch.float32, device=q.device)
    tops = torch.empty(B * G, splits, R, 2, dtype=torch.float32, device=q.device)  # the highest score, and the sum
    attend[(B * G, splits)](
        q, k, v, seen, parts, tops, scale, *strides, G, S, split, R, rows, K, BLOCK, False, num_warps=4
    )
    merge[(B * H,)](parts, tops, out, splits, 1 << (splits - 1).bit_length(), R, K, num_warps=1)
    return out


@decode.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)
