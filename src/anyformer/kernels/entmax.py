"""Sparse alternatives to softmax: entmax [Peters et al. 2019] with alpha = 1.5, and sparsemax [Martins and Astudillo
2016], which is entmax with alpha = 2; softmax is the limit at alpha = 1.

    p = max((alpha - 1) x - tau, 0) ^ (1 / (alpha - 1)),   with tau such that p sums to 1

Exact, by sorting: if the support is the k largest, tau is the root of a linear (sparsemax) or quadratic equation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def entmax(x: Tensor) -> Tensor:
    """1.5-entmax over the last dimension."""
    return Entmax.apply(x, 1.5)


def sparsemax(x: Tensor) -> Tensor:
    return Entmax.apply(x, 2.0)


class Entmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float) -> Tensor:
        # p is at most 1, so tau is at least max - 1, and smaller scores get no weight: clamping them changes nothing,
        # and masked scores (the most negative float) can then be squared
        z = ((alpha - 1) * (x - x.amax(-1, keepdim=True))).clamp(min=-1.0)
        best = z.sort(dim=-1, descending=True).values
        k = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
        mean = best.cumsum(-1) / k  # mean of the k largest
        if alpha == 2:
            tau = mean - 1 / k  # sum of (z - tau) = 1
        else:
            variance = (best**2).cumsum(-1) / k - mean**2
            tau = mean - (1 / k - variance).clamp(min=0).sqrt()  # sum of (z - tau)^2 = 1
        support = (tau < best).sum(-1, keepdim=True).clamp(min=1)
        p = (z - tau.gather(-1, support - 1)).clamp(min=0)
        p = p if alpha == 2 else p**2
        ctx.save_for_backward(p)
        ctx.alpha = alpha
        return p

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (p,), (g,) = ctx.saved_tensors, gradients
        s = (p > 0).to(p.dtype) if ctx.alpha == 2 else p.sqrt()  # p ^ (2 - alpha) on the support
        return s * (g - (s * g).sum(-1, keepdim=True) / s.sum(-1, keepdim=True)), None
