"""GELU's tanh approximation as x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3): sigmoid costs half of tanh."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

TWICE = 2 * math.sqrt(2 / math.pi)
CUBE = 0.044715
CHUNK, LEAST = 2**17, 2**16  # numbers per chunk, which fit the CPU's cache; smaller tensors use F.gelu


def gelu_tanh(x: Tensor) -> Tensor:
    """The same as F.gelu(x, approximate="tanh"), in a third of the time for fp32 on a CPU."""
    plain = x.device.type != "cpu" or x.dtype != torch.float32 or x.numel() < LEAST or not x.is_contiguous()
    if plain or torch.compiler.is_compiling():
        return F.gelu(x, approximate="tanh")
    return _Gelu.apply(x) if torch.is_grad_enabled() and x.requires_grad else _by_chunks(x)


def gelu_by_sigmoid(x: Tensor) -> Tensor:
    """The same as plain operations, which a compiler fuses into one pass."""
    wide = x.float()
    return (wide * torch.sigmoid(TWICE * (wide + CUBE * wide**3))).to(x.dtype)


def _by_chunks(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    for given, out in zip(x.view(-1).split(CHUNK), y.view(-1).split(CHUNK), strict=True):
        torch.mul(given, given, out=out)
        out.mul_(TWICE * CUBE).add_(TWICE).mul_(given).sigmoid_().mul_(given)
    return y


class _Gelu(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return _by_chunks(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Tensor:
        return torch.ops.aten.gelu_backward(above, *ctx.saved_tensors, approximate="tanh")
