"""Convolutions over time on (B, T, C), as matrix products or depthwise, without a change of layout.

B batch, T frames, C channels in, O channels out, k kernel size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """Convolve (B, T, C) with weights (O, C, k) -> (B, frames, O), without padding.

    Every `stride` neighbouring taps read contiguous rows of `stride` frames, so that one product computes them without
    a copy.
    """
    (B, T, C), (O, _, k) = x.shape, weight.shape
    n = (T - k) // stride + 1
    if C == 1:
        return F.linear(x[..., 0].unfold(1, k, stride), weight[:, 0], bias)
    taps = weight.transpose(1, 2).reshape(O, k * C).t()  # (k C, O)
    s, whole = stride, k - k % stride
    pieces = [(t, x[:, t : t + n * s].reshape(B, n, s * C)) for t in range(0, whole, s)]
    pieces += [(t, x[:, t : t + (n - 1) * s + 1 : s]) for t in range(whole, k)]
    out = bias
    for t, rows in pieces:
        matrix = taps[t * C : t * C + rows.shape[-1]].expand(B, -1, -1)
        out = torch.bmm(rows, matrix) if out is None else torch.baddbmm(out, rows, matrix)
    assert out is not None
    return out


def convolve_over_time(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, norm_weight: Tensor, norm_bias: Tensor, eps: float
) -> Tensor:
    """Convolve one channel (B, T) with weights (O, 1, k) -> (B, frames, O), then normalise each channel over its row.

    The mean and variance of W u are computed from the windows u, which have only k numbers, and folded into W.
    """
    taps = weight[:, 0].double()  # fp64 against cancellation of neighbouring samples; (O, k) is small
    windows = x.double().unfold(1, weight.shape[-1], stride)
    windows = windows - windows.mean(1, keepdim=True)
    spread = torch.matmul(windows.transpose(1, 2), windows) / windows.shape[1]  # (B, k, k)
    variance = (torch.matmul(taps, spread) * taps).sum(-1)
    taps = taps * (torch.rsqrt(variance + eps) * norm_weight)[..., None]  # (B, O, k)
    if bias is not None:
        norm_bias = norm_bias + 0 * bias  # the norm cancels the bias; its gradient must be zero, not None
    return torch.baddbmm(norm_bias, windows.to(x.dtype), taps.transpose(1, 2).to(x.dtype))


def depthwise(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    padding: tuple[int, int] = (0, 0),
    documents: Tensor | None = None,
) -> Tensor:
    """Convolve each channel of (B, T, C) with its own taps (C, 1, k), with zero padding before and after. With
    `documents` (B, T), taps see only their own document, and the length is unchanged."""
    if documents is not None:
        return _convolve_documents(x, weight, bias, padding, documents)
    if padding[0] != padding[1]:
        x, padding = F.pad(x, (0, 0, *padding)), (0, 0)
    if x.device.type == "cpu":  # as a channels-last image one pixel high, (B, T, C) is many times faster
        image = x.transpose(1, 2).unsqueeze(2)
        y = F.conv2d(image, weight.unsqueeze(2), bias, padding=(0, padding[0]), groups=x.shape[-1]).squeeze(2)
    else:
        y = F.conv1d(x.transpose(1, 2), weight, bias, padding=padding[0], groups=x.shape[-1])
    return y.transpose(1, 2)


def _convolve_documents(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int], documents: Tensor
) -> Tensor:
    """Convolve tap by tap; a tap in a different document counts as 0."""
    out = torch.zeros_like(x) if bias is None else bias.expand_as(x)
    values, around = F.pad(x, (0, 0, *padding)), F.pad(documents, padding, value=-1)
    for t in range(weight.shape[-1]):
        end = t + x.shape[1]
        same = (around[:, t:end] == documents)[..., None]
        out = out + values[:, t:end] * same * weight[:, 0, t]
    return out
