"""Experts of a decoding step on CUDA, of few rows: each matrix that a token chose is read once, and nothing is sorted.

One row goes through its experts column by column; several go, masked, through every expert that one of them chose, by
the matrix unit. Long sums are divided among programs and put together, in a fixed order, where the experts of a token
are. Sums are in fp32, and results are rounded where the plain modules round.

M rows, D width, F inner width, E experts, k experts a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.kernels.few_rows import power_above, some_rows_shape
from anyformer.kernels.triton_launch import launch, shared_memory

PROGRAMS = 256  # that keep a large device busy
MOST_EXPERTS = 1024  # whose scores one program compares


def choose(logits: Tensor, top_k: int, score: str, normalize: bool, scale: float) -> tuple[Tensor, Tensor]:
    """logits (M, E) -> the experts (M, k) with the highest, and their weights: a softmax over all, or a "sigmoid" of
    each, that may add up to 1, times `scale`."""
    from anyformer.kernels.few_experts_triton import choose as program

    M, E = logits.shape
    experts = torch.empty(M, top_k, dtype=torch.int32, device=logits.device)
    weights = torch.empty(M, top_k, dtype=torch.float32, device=logits.device)
    shape = E, top_k, power_above(E), power_above(top_k), score == "softmax", normalize
    launch(program, (M,), logits, experts, weights, scale, *shape, num_warps=1)
    return experts, weights


def expert_rows(
    x: Tensor, experts: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, activation: str, gated: bool
) -> Tensor:
    """x (M, D) through the two layers of its experts (M, k), E for none: up (E, D, F, or 2 F where gates are before the
    rest), then down (E, F, D) -> (splits, M, k, D) in fp32, sums that `combine` adds."""
    inner = _product(x, experts, up, up_bias, activation, gated, each=False)[0]
    return _product(inner, experts, down, None, "identity", False, each=True)


def _product(
    x: Tensor, experts: Tensor, weight: Tensor, bias: Tensor | None, activation: str, gated: bool, each: bool
) -> Tensor:
    """x (M, K), or (M, k, K) of `each` expert, times the matrices (E, K, N) of the experts: (splits, M, k, N)."""
    from anyformer.kernels.few_experts_triton import one_row, some_rows

    (M, k), (E, K, both) = experts.shape, weight.shape
    N = both // 2 if gated else both
    if M == 1:
        columns, outputs = min(256 // x.element_size(), max(16, power_above(K))), 32
        programs, options = k * -(-N // outputs), {"num_warps": 4}
    else:
        rows, outputs, columns, warps, stages = some_rows_shape(M, K, gated, shared_memory(x.device))
        programs, options = min(E, M * k) * -(-N // outputs), {"num_warps": warps, "num_stages": stages}
    # only sums that nothing but `combine` reads can be divided
    splits = max(1, min(PROGRAMS // programs, K // (4 * columns))) if each else 1
    span = -(-K // splits // columns) * columns
    splits = -(-K // span)
    out = torch.empty(splits, M, k, N, dtype=torch.float32 if each else x.dtype, device=x.device)
    tensors = x.contiguous(), experts.contiguous(), weight, out if bias is None else bias, out
    kinds = {"GATED": gated, "ACTIVATION": activation, "BIASED": bias is not None, "EACH": each}
    even = K % columns == 0
    grid = -(-N // outputs)
    if M == 1:
        launch(one_row, (grid, k, splits), *tensors, E, N, K, span, columns, outputs, even, **kinds, **options)
    else:
        shape = k, power_above(k), rows, outputs, columns, even
        launch(some_rows, (grid, E, splits), *tensors, M, E, N, K, span, *shape, **kinds, **options)
    return out


def combine(
    sums: Tensor,
    experts: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    num_experts: int,
    dtype: torch.dtype,
    beside: Tensor | None = None,
    onto: Tensor | None = None,
) -> Tensor:
    """Of sums (splits, M, k, D), each expert's, with its bias (E, D): those of a row by their weights (M, k), rounded
    to `dtype`; `beside` (M, D) of that type is added, then `onto` (M, D)."""
    from anyformer.kernels.few_experts_triton import combine as program

    splits, M, k, D = sums.shape
    out = torch.empty(M, D, dtype=dtype if onto is None else onto.dtype, device=sums.device)
    like = torch.empty(0, dtype=dtype, device=sums.device)
    others = (sums if given is None else given.contiguous() for given in (bias, beside, onto))
    tensors = sums, experts.contiguous(), weights.contiguous(), *others, like, out
    block = min(256, power_above(D))
    kinds = {"BIASED": bias is not None, "BESIDE": beside is not None, "ONTO": onto is not None}
    launch(program, (-(-D // block), M), *tensors, M, num_experts, D, splits, k, block, **kinds, num_warps=2)
    return out
