"""A cyclic shift of a grid that the compiler does not fuse.

torch 2.11 fuses `roll` into the pass that reads its result. On an H200, in 8 of 12 processes, that pass read the grid
as it was: shifted windows were cut where plain ones are, and a Swin learned another function than the one that it was
evaluated by (docs/results/vision.md). The compiler cannot look into this operation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def roll_grid(x: Tensor, shift: int) -> Tensor:
    """(B, rows, columns, D), shifted down and right by `shift`, round the edges"""
    if torch.compiler.is_compiling() and x.is_cuda:
        return torch.ops.anyformer.roll_grid(x, shift)
    return x.roll((shift, shift), (1, 2))


@torch.library.custom_op("anyformer::roll_grid", mutates_args=())
def _roll_grid(x: Tensor, shift: int) -> Tensor:
    return x.contiguous().roll((shift, shift), (1, 2))


@_roll_grid.register_fake
def _(x: Tensor, shift: int) -> Tensor:
    return x.new_empty(x.shape)


def _remember(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
    ctx.shift = inputs[1]


def _backward(ctx: Any, above: Tensor) -> tuple[Tensor, None]:
    return torch.ops.anyformer.roll_grid(above, -ctx.shift), None


_roll_grid.register_autograd(_backward, setup_context=_remember)
