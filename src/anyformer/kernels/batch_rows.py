"""Rows of a batch in tensors: taken, stacked, moved, and where their places stand.

B rows, T new tokens, L room for tokens, N places that are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def select_rows(tensor: Tensor, rows: Tensor, static: bool) -> Tensor:
    """The given rows of a tensor; in place if `static` and their number stays. An empty tensor has no rows."""
    new = tensor.new_zeros(len(rows), *tensor.shape[1:]) if tensor.numel() == 0 else tensor.index_select(0, rows)
    return tensor.copy_(new) if static and new.shape == tensor.shape else new


def longer(tensor: Tensor, dim: int, length: int, left: bool = False) -> Tensor:
    """Zeros behind (or on the left), to so many places along a dimension."""
    missing = max(length - tensor.shape[dim], 0)
    return F.pad(tensor, (*[0, 0] * (tensor.dim() - 1 - dim), *((missing, 0) if left else (0, missing))))


def stack_rows(tensors: Sequence[Tensor], dim: int, left: bool = False) -> Tensor:
    """Concatenates the rows of several tensors, the shorter padded along `dim`."""
    longest = max(tensor.shape[dim] for tensor in tensors)
    return torch.cat([longer(tensor, dim, longest, left) for tensor in tensors])


def grid(shape: torch.Size, columns: Tensor) -> tuple[Tensor, ...]:
    """Indices, one a dimension, of the columns (T,) or (B, T) in all rows of a table (B, ..., L)."""
    sizes = shape[:-1]
    at = [torch.arange(n, device=columns.device).view(n, *[1] * (len(sizes) - i)) for i, n in enumerate(sizes)]
    return (*at, columns.view(-1, *[1] * (len(sizes) - 1), columns.shape[-1]))


def lines(shape: torch.Size, columns: Tensor) -> Tensor:
    """Of a table (B, ..., L) whose last dimension is cut into lines: where the columns (T,) or (B, T) of all are."""
    first = torch.arange(0, math.prod(shape), shape[-1], device=columns.device).view(*shape[:-1], 1)
    return (first + columns.view(-1, *[1] * (len(shape) - 2), columns.shape[-1])).flatten()


def pick_columns(tensor: Tensor, dim: int, column: Tensor, real: Tensor) -> Tensor:
    """The entries at `column` (B, N) of a dimension of each row; 0 where not `real` (B, N)."""
    rows = torch.arange(column.shape[0], device=column.device)[:, None]
    found = tensor.movedim(dim, 1)[rows, column.clamp(0, tensor.shape[dim] - 1)]
    return found.masked_fill(~real.view(*real.shape, *[1] * (found.dim() - 2)), 0).movedim(1, dim)


def realign(tensor: Tensor, dim: int, behind: Tensor, count: int) -> Tensor:
    """The last `count` entries of each row, with its `behind` (B,) trailing pads moved to the front as 0."""
    size = tensor.shape[dim]
    column = torch.arange(size - count, size, device=tensor.device) - behind[:, None]
    return pick_columns(tensor, dim, column, column >= 0)


def mask_or_ones(mask: Tensor | None, size: tuple[int, ...], device: torch.device) -> Tensor:
    """The mask as booleans; all True where there is none."""
    return torch.ones(size, dtype=torch.bool, device=device) if mask is None else mask.bool()
