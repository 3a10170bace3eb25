"""Operations on the rows of batched tensors: select, stack, realign and index them.

B rows, T new tokens, L capacity in tokens, N selected columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def select_rows(tensor: Tensor, rows: Tensor, static: bool) -> Tensor:
    """Select rows of a tensor; in place if `static` and the number of rows is unchanged. An empty tensor gives
    zeros."""
    new = tensor.new_zeros(len(rows), *tensor.shape[1:]) if tensor.numel() == 0 else tensor.index_select(0, rows)
    return tensor.copy_(new) if static and new.shape == tensor.shape else new


def longer(tensor: Tensor, dim: int, length: int, left: bool = False) -> Tensor:
    """Pad a dimension with zeros to `length`, at its end or (`left`) at its start."""
    missing = max(length - tensor.shape[dim], 0)
    return F.pad(tensor, (*[0, 0] * (tensor.dim() - 1 - dim), *((missing, 0) if left else (0, missing))))


def stack_rows(tensors: Sequence[Tensor], dim: int, left: bool = False) -> Tensor:
    """Concatenate the rows of several tensors; shorter tensors are padded along `dim`."""
    longest = max(tensor.shape[dim] for tensor in tensors)
    return torch.cat([longer(tensor, dim, longest, left) for tensor in tensors])


def grid(shape: torch.Size, columns: Tensor) -> tuple[Tensor, ...]:
    """Return indices, one per dimension, of the columns (T,) or (B, T) in all rows of a table (B, ..., L)."""
    sizes = shape[:-1]
    at = [torch.arange(n, device=columns.device).view(n, *[1] * (len(sizes) - i)) for i, n in enumerate(sizes)]
    return (*at, columns.view(-1, *[1] * (len(sizes) - 1), columns.shape[-1]))


def lines(shape: torch.Size, columns: Tensor) -> Tensor:
    """Return the flat indices of the columns (T,) or (B, T) in all rows of a table (B, ..., L)."""
    first = torch.arange(0, math.prod(shape), shape[-1], device=columns.device).view(*shape[:-1], 1)
    return (first + columns.view(-1, *[1] * (len(shape) - 2), columns.shape[-1])).flatten()


def pick_columns(tensor: Tensor, dim: int, column: Tensor, real: Tensor) -> Tensor:
    """Return the entries at `column` (B, N) of dimension `dim` in each row; 0 if `real` (B, N) is False."""
    rows = torch.arange(column.shape[0], device=column.device)[:, None]
    entries = tensor.movedim(dim, 1)[rows, column.clamp(0, tensor.shape[dim] - 1)]
    return entries.masked_fill(~real.view(*real.shape, *[1] * (entries.dim() - 2)), 0).movedim(1, dim)


def realign(tensor: Tensor, dim: int, behind: Tensor, count: int) -> Tensor:
    """Move the `behind` (B,) trailing pads of each row to the front, as 0; return the last `count` entries."""
    size = tensor.shape[dim]
    column = torch.arange(size - count, size, device=tensor.device) - behind[:, None]
    return pick_columns(tensor, dim, column, column >= 0)


def mask_or_ones(mask: Tensor | None, size: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the mask as booleans, or all True if it is None."""
    return torch.ones(size, dtype=torch.bool, device=device) if mask is None else mask.bool()
