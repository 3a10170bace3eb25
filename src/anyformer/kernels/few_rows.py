"""Fused programs for a decoding step of few rows on CUDA: one launch instead of several of torch's (Triton).

A step of one token reads every weight once and computes little, and the device idles between launches. So the program
of a linear layer also computes the norm before it and the bias, activation, gate and residual sum after it, and each
program starts to read its weights while the previous one ends. Sums are in fp32, and results are rounded where the
plain modules round.

M rows, K width in, N width out, H heads, G key/value heads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.kernels.triton_launch import HAS_TRITON, launch, shared_memory

MOST_ROWS = 128  # with more rows, launches take little of the time
ACTIVATIONS = ("identity", "relu", "relu2", "gelu", "gelu_tanh", "quick_gelu", "silu", "sigmoid")
WIDEST = 16384  # widest row that one program can norm
PIECE = 2048  # scores that one program compares


@dataclasses.dataclass(frozen=True)
class NormWeights:
    """The norm before a linear layer. `kind` is "rms" or "layer"."""

    kind: str
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    @property
    def affine(self) -> int:
        return 0 if self.weight is None else 1 if self.bias is None else 2


def fits(x: Tensor, rows: int) -> bool:
    """Whether these programs support x (rows, K)."""
    kinds = (torch.bfloat16, torch.float16) if rows > 1 else (torch.bfloat16, torch.float16, torch.float32)
    return HAS_TRITON and x.is_cuda and 1 <= rows <= MOST_ROWS and x.dtype in kinds and not torch.is_grad_enabled()


def has_ptx(x: Tensor) -> bool:
    """Whether the device of x runs NVIDIA's PTX instructions."""
    return x.is_cuda and torch.version.hip is None


def power_above(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def norm_rows(x: Tensor, norm: NormWeights, dtype: torch.dtype | None = None) -> Tensor:
    """Round x (M, K) to `dtype`, then normalise each row."""
    from anyformer.kernels.few_rows_triton import normalize

    (M, K), x = x.shape, x.contiguous()
    out, width = torch.empty_like(x, dtype=dtype), power_above(K)
    given, warps = (norm.weight, norm.bias, norm.eps), min(max(width // 512, 1), 16)
    launch(normalize, (M,), x, out, *given, K, width, norm.kind, norm.affine, num_warps=warps)
    return out


def linear(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    *,
    norm: NormWeights | None = None,
    activation: str = "identity",
    gated: bool = False,
    onto: Tensor | None = None,
    scales: Sequence[Tensor] = (),
    offsets: Sequence[Tensor] = (),
) -> Tensor:
    """Multiply norm(x), x (M, K), by one to three weights (N, K): (M, sum of N). `activation` is applied to all
    outputs; with `gated`, only to the first weight's outputs, which then multiply the second's. `onto` (M, N) is added.
    If M is 1, weights may be int8 or fp8 with a scale (N,) per output, or 4-bit with a scale and an offset (N, groups)
    per group of inputs. If x or `onto` has a wider type than the weights, x is rounded to their type first, and the sum
    keeps the type of `onto`."""
    from anyformer.kernels.few_rows_triton import one_row, some_rows

    (M, K), sizes, x = x.shape, [len(weight) for weight in weights], x.contiguous()
    N, dtype = sizes[0] if gated else sum(sizes), x.dtype if scales else weights[0].dtype
    if M > 1:
        x = x.to(dtype) if norm is None else norm_rows(x, norm, dtype)
    if M > 1 and onto is not None and onto.dtype == dtype and biases[0] is None:
        return torch.addmm(onto, x, weights[0].t())  # torch splits the sums of long rows among programs
    out = torch.empty(M, N, dtype=dtype if onto is None else onto.dtype, device=x.device)
    unused = 3 - len(weights)  # the programs take three pointers
    weights, biases = [*weights, *[weights[0]] * unused], [*biases, *[None] * unused]
    factors = [*scales, *[scales[0]] * unused] if scales else [out] * 3
    steps = [*offsets, *[offsets[0]] * unused] if offsets else [out] * 3
    stream = out if onto is None else onto.contiguous()
    meta: dict[str, Any] = {
        "ACTIVATION": activation,
        "GATED": gated,
        "WEIGHTS": 3 - unused,
        "BIASES": sum(2**i for i, bias in enumerate(biases) if bias is not None),
        "ONTO": onto is not None,
    }
    each = [sizes[0]] if gated else sizes  # output sizes that determine the grid
    sizes = [*sizes, *[0] * unused]
    tensors = *weights, *(out if bias is None else bias for bias in biases)
    if M == 1:
        before = norm or NormWeights("none", None, None, 0.0)
        group = 2 * weights[0].shape[1] // offsets[0].shape[1] if offsets else 0
        rows, block, warps = int4_shape(K, N, gated, group) if offsets else one_row_shape(K, N, gated, bool(scales))
        places, row = (sum(-(-size // rows) for size in each),), (x, before.weight, before.bias, before.eps)
        shape = (K, rows, block, power_above(K), before.kind, before.affine)
        meta |= {"SCALED": bool(scales) and not offsets, "GROUP": group, "PTX": has_ptx(x)}
        launch(one_row, places, *row, *tensors, *factors, *steps, stream, out, *sizes, *shape, num_warps=warps, **meta)
        return out
    *tile, warps, stages = some_rows_shape(M, K, gated, shared_memory(x.device))
    grid = (sum(-(-size // tile[1]) for size in each), -(-M // tile[0]))
    launch(some_rows, grid, x, *tensors, stream, out, M, *sizes, K, *tile, num_warps=warps, num_stages=stages, **meta)
    return out


def one_row_shape(K: int, N: int, gated: bool, of_bytes: bool) -> tuple[int, int, int]:
    """Return outputs per program, columns per tile, and warps: the best of a sweep on an H200. It reached 2.6 to 2.8
    TB/s for products of 3 to 4 microseconds, 3.8 for the feed-forward layer and 4.6 for the vocabulary; with fp8
    weights 1.5 to 1.7, 2.9 and 4.1, with int8 weights 1.4 to 1.6, 2.6 and 4.0."""
    block = min(2048, power_above(K))
    if of_bytes:
        if N > 32768:
            return 8, block, 2
        return (4, block, 2) if gated else (4, block, 4) if K > 4096 else (4, block, 1) if N > 2048 else (2, block, 4)
    if gated:
        return 2, min(1024, block), 4
    if N > 32768:
        return 2, min(1024, block), 2
    return (4, block, 2) if K > 4096 or N > 2048 else (2, block, 4)


def int4_shape(K: int, N: int, gated: bool, group: int) -> tuple[int, int, int]:
    """Return outputs per program, groups per tile, and warps: the best of a sweep. Unpacking the numbers is the limit,
    not memory (0.7 to 2.0 TB/s on an H200)."""
    stored = min(power_above(K) // 2, 512 if N > 32768 else 2048)  # bytes per row of a tile
    block, most = max(2 * stored // group, 1), max(stored // 256, 1)
    if gated or K > 4096:
        return 8, block, min(most, 8)
    return (8, block, min(most, 2)) if N > 2048 else (4, block, min(most, 4))


def some_rows_shape(M: int, K: int, gated: bool, room: int) -> tuple[int, int, int, int, int]:
    """Return rows, outputs and columns of a program's tiles, warps, and pipeline stages that fit `room` bytes of shared
    memory."""
    rows, outputs, columns = max(16, power_above(M)), 64, min(128 if M <= 32 else 64, max(16, power_above(K)))
    tile = 2 * columns * (rows + (2 * outputs if gated else outputs))  # bytes
    return rows, outputs, columns, 4, max(2, min(5 if M <= 32 else 4, room // tile))


def rotate_append(
    qkv: Tensor, heads: tuple[int, int, int], angles: tuple[Tensor, Tensor] | None, interleaved: bool,
    keys: Tensor, values: Tensor, columns: Tensor,
) -> Tensor:  # fmt: skip
    """Apply rotary positions to the queries and keys of qkv (M, (H + 2 G) K) and return the queries (M, H, 1, K). Write
    the keys to `keys` (M, G, L, K) at `columns` (M or 1,) and the values to `values`. `angles` are cos and sin (1 or M,
    ..., width / 2)."""
    from anyformer.kernels.few_rows_triton import rotate_append as program

    (M, _), (H, G, K) = qkv.shape, heads
    q = torch.empty(M, H, 1, K, dtype=qkv.dtype, device=qkv.device)
    cos, sin = (qkv, qkv) if angles is None else angles
    half = 0 if angles is None else cos.shape[-1]
    angle_row = half if angles is not None and cos.shape[0] > 1 else 0
    strides = angle_row, 1 if columns.numel() > 1 else 0, *keys.stride()[:3], *values.stride()[:3]
    shape = H, G, K, power_above(K), half, interleaved
    launch(program, (M, H + 2 * G), qkv, cos, sin, columns, q, keys, values, *strides, *shape, num_warps=1)
    return q


def take_highest(scores: Tensor, tokens: Tensor, written: Tensor, count: Tensor, broken: Tensor) -> None:
    """Write the most likely token of each row of scores (M, V) to tokens (M, 1) and to column `count` (M,) of written
    (M, L), and increment `count`. Set `broken` () if a score is NaN."""
    from anyformer.kernels.few_rows_triton import highest_of_piece
    from anyformer.kernels.few_rows_triton import take_highest as program

    M, V = scores.shape
    pieces = -(-V // PIECE)
    best = torch.empty(M, pieces, dtype=torch.float32, device=scores.device)
    place = torch.empty(M, pieces, dtype=torch.int32, device=scores.device)
    launch(highest_of_piece, (M, pieces), scores, best, place, V, PIECE, num_warps=4)
    sizes = V, written.shape[1], pieces, power_above(pieces)
    launch(program, (M,), scores, best, place, tokens, written, count, broken, *sizes, num_warps=1)
