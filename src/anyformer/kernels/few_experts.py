"""Mixture of experts for a decoding step of few rows on CUDA: each chosen matrix is read once, and nothing is sorted.

A single row is multiplied by its experts without tensor cores. Several rows are multiplied, masked, by every expert
that any of them chose, on tensor cores. Long sums are split among programs; `combine` adds the splits and the experts
of a token in a fixed order. Sums are in fp32, and results are rounded where the plain modules round.

M rows, D width, F inner width, E experts, k experts per row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.kernels.few_rows import power_above, some_rows_shape
from anyformer.kernels.triton_launch import launch, shared_memory

PROGRAMS = 256  # number of programs that keeps a large GPU busy
MOST_EXPERTS = 1024  # most experts whose scores one program can compare


def choose(logits: Tensor, top_k: int, score: str, normalize: bool, scale: float) -> tuple[Tensor, Tensor]:
    """logits (M, E) -> the top experts (M, k) and their weights: a softmax over all experts or a "sigmoid" of each,
    optionally normalised to sum to 1, times `scale`."""
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
    """Apply the two layers of the experts (M, k) of each row to x (M, D): up (E, D, F, or 2 F with the gates first),
    then down (E, F, D) -> (splits, M, k, D) in fp32, which `combine` sums. The expert index E means none."""
    inner = _product(x, experts, up, up_bias, activation, gated, each=False)[0]
    return _product(inner, experts, down, None, "identity", False, each=True)


def _product(
    x: Tensor, experts: Tensor, weight: Tensor, bias: Tensor | None, activation: str, gated: bool, each: bool
) -> Tensor:
    """Multiply x (M, K), or (M, k, K) if `each` expert has its own, by the experts' (E, K, N): (splits, M, k, N)."""
    from anyformer.kernels.few_experts_triton import one_row, some_rows

    (M, k), (E, K, both) = experts.shape, weight.shape
    N = both // 2 if gated else both
    if M == 1:
        columns, outputs = min(256 // x.element_size(), max(16, power_above(K))), 32
        programs, options = k * -(-N // outputs), {"num_warps": 4}
    else:
        rows, outputs, columns, warps, stages = some_rows_shape(M, K, gated, shared_memory(x.device))
        programs, options = min(E, M * k) * -(-N // outputs), {"num_warps": warps, "num_stages": stages}
    # only sums that go to `combine` can be split
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
    """Add up sums (splits, M, k, D) and the experts' bias (E, D), weight them by (M, k) and round to `dtype`; then add
    `beside` (M, D) of that type and `onto` (M, D)."""
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
