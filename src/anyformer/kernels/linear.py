"""Linear layers for training in half precision on CUDA, whose backward pass reads each gradient once.

The gradient of a bias is the sum over rows of the incoming gradient; a separate sum reads a large tensor again for
almost no work. Here it is computed while that tensor is written: while the gradients of several layers are
concatenated, or while the activation's derivative is applied. The products are torch's.

M tokens, D width in, N width out.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels.gelu import gelu_by_sigmoid
from anyformer.kernels.triton_launch import HAS_TRITON

ROWS, COLUMNS, TILE, WARPS = 256, 128, 16, 4  # per program, which processes TILE rows at a time


def half_type(x: Tensor) -> torch.dtype | None:
    """Return the half-precision type of products with x during training on CUDA with Triton; None otherwise."""
    if not (HAS_TRITON and x.is_cuda and torch.is_grad_enabled()):
        return None
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    return dtype if dtype in (torch.bfloat16, torch.float16) else None


def cast_for_autocast(x: Tensor) -> Tensor:
    """Cast an fp32 tensor to autocast's dtype if autocast is enabled.

    Autocast casts the input of every linear layer, and their gradients back. Layers that read the same tensor share one
    cast if it happens before them.
    """
    kind = x.device.type
    if x.dtype != torch.float32 or kind == "meta" or not torch.is_autocast_enabled(kind):
        return x
    return x.to(torch.get_autocast_dtype(kind))


def linears(x: Tensor, weight: Tensor, bias: Tensor, sizes: list[int], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Apply several linear layers to x, (..., D) -> (..., size) each; `weight` (N, D) and `bias` (N,) are
    concatenated."""
    return _Linears.apply(*(t.to(dtype) for t in (x, weight, bias)), sizes)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute gelu(x @ weight.T + bias) with GELU's tanh approximation: (..., D) -> (..., N)."""
    return _LinearGelu.apply(*(t.to(dtype) for t in (x, weight, bias)))


class _Linears(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias).split(sizes, dim=-1)

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        grad, sums = side_by_side([g.contiguous() for g in above])
        return *_products(grad, x, weight), sums, None


class _LinearGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        inner = F.linear(x, weight, bias)
        ctx.save_for_backward(x, weight, inner)
        return gelu_by_sigmoid(inner)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        x, weight, inner = ctx.saved_tensors
        grad, sums = gelu_gradient(above.contiguous(), inner)
        return *_products(grad, x, weight), sums


def _products(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the weights."""
    return (grad @ weight).view(x.shape), grad.T @ x.reshape(-1, x.shape[-1])


@torch.library.custom_op("anyformer::side_by_side", mutates_args=())
def side_by_side(grads: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Concatenate gradients (..., size) to (M, N), and sum their rows (N,)."""
    return _write_gradients(grads, None)


@side_by_side.register_fake
def _(grads: list[Tensor]) -> tuple[Tensor, Tensor]:
    M, N = math.prod(grads[0].shape[:-1]), sum(g.shape[-1] for g in grads)
    return grads[0].new_empty(M, N), grads[0].new_empty(N)


@torch.library.custom_op("anyformer::gelu_gradient", mutates_args=())
def gelu_gradient(above: Tensor, inner: Tensor) -> tuple[Tensor, Tensor]:
    """Given the gradient `above` of a GELU's output, return the gradient (M, N) of its input and its row sum (N,)."""
    return _write_gradients([above], inner)


@gelu_gradient.register_fake
def _(above: Tensor, inner: Tensor) -> tuple[Tensor, Tensor]:
    N = above.shape[-1]
    return above.new_empty(math.prod(above.shape[:-1]), N), above.new_empty(N)


def _write_gradients(grads: list[Tensor], inner: Tensor | None) -> tuple[Tensor, Tensor]:
    from anyformer.kernels.linear_triton import write_and_sum

    M, N = math.prod(grads[0].shape[:-1]), sum(g.shape[-1] for g in grads)
    blocks = -(-M // ROWS)
    out, sums = grads[0].new_empty(M, N), grads[0].new_empty(blocks, N, dtype=torch.float32)
    offset = 0
    for g in grads:
        size = g.shape[-1]
        program = functools.partial(write_and_sum[(blocks, -(-size // COLUMNS))], num_warps=WARPS)
        program(g, g if inner is None else inner, out, sums, M, size, N, offset, inner is not None, ROWS, COLUMNS, TILE)
        offset += size
    return out, sums.sum(0).to(out.dtype)
