"""Grouped matrix products, for experts: each group of rows is multiplied by its own matrix.

M rows, E groups, D inputs, F outputs. `ends` (E,) has the end of the rows of each group; rows after the last end belong
to no group, and their output is zero.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels.capture import can_read_values, is_capturing


def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """x (M, D), weight (E, D, F) -> (M, F): row m times the matrix of its group. The matrices are (inputs, outputs),
    because products of few rows are a third faster on CPUs with this layout than with its transpose."""
    if _native(x, weight):
        return F.grouped_mm(x, weight, offs=ends.to(torch.int32))
    if x.is_cuda and is_capturing():
        return gathered_linear(x, weight, ends)
    learns = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    if learns or x.is_meta or torch.compiler.is_compiling():
        return _linear(x, weight, ends)
    return _forward(x, weight, ends)


def gathered_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """The same with one copy of the matrix per row. It reads no tensor values, so a CUDA graph can capture it."""
    group = torch.searchsorted(ends, torch.arange(x.shape[0], device=x.device), right=True)
    mine = weight[group.clamp(max=weight.shape[0] - 1)]  # (M, D, F)
    return torch.bmm(x[:, None], mine)[:, 0].masked_fill((group == weight.shape[0])[:, None], 0)


def cast(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Cast both to autocast's dtype if autocast is enabled, as for a linear layer: torch does not cast grouped
    products."""
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):  # autocast does not support meta
        return x, weight
    dtype = torch.get_autocast_dtype(kind)
    return x.to(dtype), weight.to(dtype)


def takes_rest(x: Tensor, weight: Tensor) -> bool:
    """Whether x may have rows that belong to no group; torch's kernel does not write their output."""
    return not _native(x, weight)


def _native(x: Tensor, weight: Tensor) -> bool:
    """Whether torch has a kernel for these tensors: CUDA from Ampere on, row sizes in multiples of 16 bytes."""
    if not x.is_cuda or not hasattr(F, "grouped_mm") or torch.cuda.get_device_capability(x.device) < (8, 0):
        return False
    whole = all(size * x.element_size() % 16 == 0 for size in weight.shape[1:])
    return whole and x.dtype == weight.dtype and (x.dtype == torch.bfloat16 or can_read_values())


def _groups(ends: Tensor) -> list[tuple[int, int, int]]:
    """Return (group, first row, end) of the groups that have rows."""
    last = ends.tolist()
    return [(e, start, end) for e, (start, end) in enumerate(zip([0, *last], last, strict=False)) if end > start]


def _forward(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    out = x.new_empty(x.shape[0], weight.shape[2])
    groups = _groups(ends)
    for e, start, end in groups:
        torch.mm(x[start:end], weight[e], out=out[start:end])
    out[groups[-1][2] if groups else 0 :].zero_()
    return out


# opaque to torch.compile, so that one graph works for any routing
@torch.library.custom_op("anyformer::grouped_linear", mutates_args=())
def _linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return _forward(x, weight, ends)


@_linear.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[2])


@torch.library.custom_op("anyformer::grouped_outer", mutates_args=())
def _outer(x: Tensor, grad: Tensor, ends: Tensor) -> Tensor:
    """(M, D) and (M, F) -> (E, D, F): the gradient of each group's matrix."""
    out = x.new_zeros(ends.shape[0], x.shape[1], grad.shape[1])
    for e, start, end in _groups(ends):
        torch.mm(x[start:end].t(), grad[start:end], out=out[e])
    return out


@_outer.register_fake
def _(x: Tensor, grad: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(ends.shape[0], x.shape[1], grad.shape[1])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight, ends = ctx.saved_tensors
    grad = grad.contiguous()
    to_x = _linear(grad, weight.transpose(-2, -1), ends) if ctx.needs_input_grad[0] else None
    return to_x, _outer(x, grad, ends) if ctx.needs_input_grad[1] else None, None


_linear.register_autograd(_backward, setup_context=_save)
