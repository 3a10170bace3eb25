"""One token of the mixers of Mamba and Mamba-2 on CUDA, of few rows (Triton): convolution and recurrence by one launch
each.

What is remembered is written in place, where the plain path keeps it too. Sums are in fp32, and results are rounded
where the plain modules round.

M rows, I inner width, N states a channel, R rank of the time step, K taps of the convolution.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.kernels.few_rows import power_above
from anyformer.kernels.triton_launch import launch

CHANNELS = 32  # of one program: the published sizes then have enough of them for one row


def conv_step(x: Tensor, weight: Tensor, bias: Tensor | None, window: Tensor, activation: str) -> Tensor:
    """The first I channels of x (M, I or more), each with the K - 1 tokens before, by its own taps (I, 1, K), then
    activated: (M, I). `window` (M, K - 1, I), those tokens, moves on by one."""
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
    """The selective scan of one token x (M, I), then times silu(gate (M, I)): (M, I). The token has `chosen`
    (M, R + 2 N) its time step, softplus(weight (I, R) of the first R + bias (I,)), what it writes and what it reads;
    `state` (M, N, I), in fp32, forgets by -exp(rate (I, N)) and moves on."""
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
    """Mamba-2's recurrence of one token, times silu(gate (M, I)): (M, I). `mixed` (M, I + 2 G N) is the token, and what
    the G groups of heads write and read; its time steps are softplus(step (M, H) + bias (H,)), within limits; `state`
    (M, H, P, N), in fp32, forgets by -exp(rate (H,)) and moves on. H heads of P channels, I = H P."""
    from anyformer.kernels.mamba_step_triton import dual_step as program

    M, H, P, N = state.shape
    groups = (mixed.shape[1] - H * P) // (2 * N)
    out = torch.empty(M, H * P, dtype=mixed.dtype, device=mixed.device)
    tensors, strides = (mixed, gate, step, bias, rate, skip, state, out), (gate.stride(0), step.stride(0))
    block = min(CHANNELS, power_above(P))
    shape = P, N, H, groups, power_above(N), block
    launch(program, (-(-P // block), H, M), *tensors, *strides, *limits, *shape, num_warps=4)
    return out
