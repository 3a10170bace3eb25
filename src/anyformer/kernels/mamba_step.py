"""One decoding step of the mixers of Mamba and Mamba-2 on CUDA, for few rows (Triton): one launch for the convolution
and one for the recurrence.

The state is updated in place, in the same tensors as in the plain path. Sums are in fp32, and results are rounded where
the plain modules round.

M rows, I inner width, N states per channel, R rank of the time step, K kernel size of the convolution.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.kernels.few_rows import power_above
from anyformer.kernels.triton_launch import launch

CHANNELS = 32  # channels per program; at the published sizes, one row then gives enough programs


def conv_step(x: Tensor, weight: Tensor, bias: Tensor | None, window: Tensor, activation: str) -> Tensor:
    """Convolve the first I channels of x (M, I or more) and of the K - 1 previous tokens with the weights (I, 1, K),
    one set per channel, and apply the activation: (M, I). `window` (M, K - 1, I), the previous tokens, is shifted by
    one."""
    from anyformer.kernels.mamba_step_triton import conv_step as program

    M, (I, _, K) = len(x), weight.shape
    out = torch.empty(M, I, dtype=x.dtype, device=x.device)
    block = 4 * CHANNELS
    tensors = x, window, weight, out if bias is None else bias, out
    shape = K, power_above(K), block, activation, bias is not None
    launch(program, (-(-I // block), M), *tensors, x.stride(0), I, *shape, num_warps=4)
    return out


def selective_step(
    x: Tensor,
    gate: Tensor,
    chosen: Tensor,
    weight: Tensor,
    bias: Tensor,
    rate: Tensor,
    skip: Tensor,
    state: Tensor,
) -> Tensor:
    """Run one step of the selective scan on x (M, I) and multiply by silu(gate (M, I)): (M, I). `chosen` (M, R + 2 N)
    has the low-rank time step, B and C of the token; dt = softplus(weight (I, R) @ the first R + bias (I,)). `state`
    (M, N, I), in fp32, is updated in place with A = -exp(rate (I, N)); `skip` (I,) is D."""
    from anyformer.kernels.mamba_step_triton import selective_step as program

    (M, I), (R, N) = x.shape, (weight.shape[1], rate.shape[1])
    out = torch.empty_like(x)
    tensors = x, gate, chosen, weight, bias, rate, skip, state, out
    shape = R, N, power_above(N), CHANNELS, min(64, power_above(R))
    launch(program, (-(-I // CHANNELS), M), *tensors, gate.stride(0), I, *shape, num_warps=4)
    return out


def dual_step(
    mixed: Tensor,
    gate: Tensor,
    step: Tensor,
    bias: Tensor,
    rate: Tensor,
    skip: Tensor,
    state: Tensor,
    limits: tuple[float, float],
) -> Tensor:
    """Run one step of Mamba-2's recurrence and multiply by silu(gate (M, I)): (M, I). `mixed` (M, I + 2 G N) has x, B
    and C of the token, the latter two per group of heads; dt = softplus(step (M, H) + bias (H,)), clamped to `limits`.
    `state` (M, H, P, N), in fp32, is updated in place with A = -exp(rate (H,)). H heads of P channels, I = H P."""
    from anyformer.kernels.mamba_step_triton import dual_step as program

    M, H, P, N = state.shape
    groups = (mixed.shape[1] - H * P) // (2 * N)
    out = torch.empty(M, H * P, dtype=mixed.dtype, device=mixed.device)
    tensors, strides = (mixed, gate, step, bias, rate, skip, state, out), (gate.stride(0), step.stride(0))
    block = min(CHANNELS, power_above(P))
    shape = P, N, H, groups, power_above(N), block
    launch(program, (-(-P // block), H, M), *tensors, *strides, *limits, *shape, num_warps=4)
    return out
