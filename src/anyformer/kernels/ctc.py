"""The CTC loss on CUDA. Torch's implementation synchronizes to read the lengths; this one never synchronizes.

A text of S labels is a row of N = 2 S + 1 states: its labels, with a blank before, between and after them. Each frame
stays in a state, moves to the next, or skips a blank between two different labels [Graves et al. 2006].

B rows, T frames, V symbols.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.kernels.triton_launch import HAS_TRITON

MOST_STATES = 4096  # most states that one program can hold


def fits(log_probs: Tensor, labels: Tensor) -> bool:
    return HAS_TRITON and log_probs.is_cuda and log_probs.numel() > 0 and 2 * labels.shape[1] + 1 <= MOST_STATES


def ctc_losses(log_probs: Tensor, labels: Tensor, kept: Tensor, frames: Tensor, blank: int) -> Tensor:
    """Return the negative log-likelihood (B,) of the `kept` labels (B, S), given log_probs (B, T, V) in fp32. Only the
    first `frames` (B,) count. Infinite if there are more labels than the frames can emit."""
    order = (~kept).byte().argsort(dim=1, stable=True)  # moves kept labels to the front
    states = labels.new_full((len(labels), 2 * labels.shape[1] + 1), blank)
    states[:, 1::2] = labels.masked_fill(~kept, blank).gather(1, order)
    skips = torch.zeros_like(states, dtype=torch.bool)
    skips[:, 3::2] = states[:, 3::2] != states[:, 1:-2:2]
    return _CTC.apply(log_probs.contiguous(), states, skips, frames, 2 * kept.sum(-1) + 1)


class _CTC(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, states: Tensor, skips: Tensor, frames: Tensor, number: Tensor) -> Tensor:
        from anyformer.kernels.ctc_triton import forward

        (B, T, V), N = log_probs.shape, states.shape[1]
        alpha, nll = log_probs.new_empty(B, T, N), log_probs.new_empty(B)
        given = log_probs, states, skips, frames, number
        forward[(B,)](*given, alpha, nll, T, V, N, 1 << (N - 1).bit_length())
        ctx.save_for_backward(*given, alpha, nll)
        return nll

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        from anyformer.kernels.ctc_triton import backward

        log_probs, states, *_ = given = ctx.saved_tensors
        (B, T, V), N = log_probs.shape, states.shape[1]
        beta, share = torch.empty_like(given[5]), torch.zeros_like(given[5])
        backward[(B,)](*given, above.contiguous(), beta, share, T, V, N, 1 << (N - 1).bit_length())
        gradient = torch.zeros_like(log_probs)
        return gradient.scatter_add_(2, states[:, None].expand(B, T, N), share.neg_()), None, None, None, None
