"""Stores: the tensors that one mixer keeps between decoding steps, such as its KV cache.

A mixer's module declares its state in `state_spec()`: tensors per token (`PerToken`), of a fixed size per row
(`PerRow`), or computed once from the encoder's output (`PerMemory`). A `Store` holds them. A growing store lengthens
with the text, and all rows end at the same column (trailing pads are moved to the front). A static store is allocated
once, and each row is written in place at its own length, so that a step keeps its shapes and memory addresses and can
be captured in a CUDA graph. Stores know names and shapes, not architectures.

B rows, S cached tokens, L capacity in tokens, T new tokens.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.kernels.batch_rows import grid, lines, pick_columns, realign, select_rows, stack_rows
from anyformer.kernels.growing_tensor import Appender

Once = Callable[[str, Callable[[], Any]], Any]  # `Context.once`: several stores share the result of one computation
Seen = tuple[dict[str, Tensor], Tensor]  # tensors of all visible tokens by name, and their row indices

# -- declarations ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class StateSpec:
    """The state of one mixer: shapes by name, and the dtypes that differ from the model's."""

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, torch.dtype] = dataclasses.field(default_factory=dict, kw_only=True)

    def sizes(self, rows: int, tokens: int, memory: int = 0) -> dict[str, tuple[int, ...]]:
        """Shapes of the state for `rows` rows, `tokens` cached tokens and `memory` encoder positions."""
        raise NotImplementedError

    def store(self, rows: int, capacity: int | None, dtype: torch.dtype, device: torch.device) -> Store:
        """Return an empty store: growing if `capacity` is None, otherwise preallocated."""
        raise NotImplementedError

    def nbytes(self, rows: int, tokens: int, dtype: torch.dtype, memory: int = 0) -> int:
        sizes = self.sizes(rows, tokens, memory)
        return sum(math.prod(size) * self.dtypes.get(name, dtype).itemsize for name, size in sizes.items())

    def zeros(self, rows: int, tokens: int, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
        sizes = self.sizes(rows, tokens)
        return {n: torch.zeros(size, dtype=self.dtypes.get(n, dtype), device=device) for n, size in sizes.items()}


@dataclasses.dataclass(frozen=True)
class PerToken(StateSpec):
    """Tensors per token, for all tokens or the last `window`. The token dimension is before the last one: keys of shape
    (G, K) are stored as (B, G, S, K), a vector (W,) as (B, S, W) and a number () as (B, S)."""

    window: int | None = None

    def sizes(self, rows: int, tokens: int, memory: int = 0) -> dict[str, tuple[int, ...]]:
        return {n: held_shape(shape, rows, min(tokens, self.window or tokens)) for n, shape in self.shapes.items()}

    def store(self, rows: int, capacity: int | None, dtype: torch.dtype, device: torch.device) -> Store:
        if capacity is None:
            return Growing(self, {}, static=False)
        kind = Ring if self.window is not None and self.window < capacity else Static
        return kind(self, self.zeros(rows, capacity, dtype, device), static=True)


@dataclasses.dataclass(frozen=True)
class PerRow(StateSpec):
    """Tensors of a fixed size per row, whatever the length of the text."""

    def sizes(self, rows: int, tokens: int, memory: int = 0) -> dict[str, tuple[int, ...]]:
        return {name: (rows, *shape) for name, shape in self.shapes.items()}

    def store(self, rows: int, capacity: int | None, dtype: torch.dtype, device: torch.device) -> Store:
        return Store(self, self.zeros(rows, capacity or 0, dtype, device), static=capacity is not None)


@dataclasses.dataclass(frozen=True)
class PerMemory(StateSpec):
    """Tensors per encoder position, computed once per text; stored like PerToken's."""

    def sizes(self, rows: int, tokens: int, memory: int = 0) -> dict[str, tuple[int, ...]]:
        return {name: held_shape(shape, rows, memory) for name, shape in self.shapes.items()}

    def store(self, rows: int, capacity: int | None, dtype: torch.dtype, device: torch.device) -> Store:
        return CrossStore(self, {}, static=capacity is not None)


def axis(shape: tuple[int, ...]) -> int:
    """The token dimension of a stored tensor whose shape per token is `shape`."""
    return max(len(shape), 1)


def held_shape(shape: tuple[int, ...], rows: int, columns: int) -> tuple[int, ...]:
    per_row = (rows, *shape)
    return (*per_row[: axis(shape)], columns, *per_row[axis(shape) :])


# -- stores ------------------------------------------------------------------------------------------------------------


class Store:
    """The state of one mixer: tensors by name, rows first. This class holds tensors of a fixed size."""

    can_truncate = False  # whether the last tokens can be removed

    def __init__(self, declared: StateSpec, tensors: dict[str, Tensor], static: bool) -> None:
        self.declared, self.tensors, self.static = declared, tensors, static
        self.axes = {name: axis(shape) for name, shape in declared.shapes.items()}

    def replace(self, name: str, tensor: Tensor) -> None:
        """Replace a tensor; in place if static, because a captured step reads the same memory."""
        if self.static and name in self.tensors:
            self.tensors[name].copy_(tensor)
        else:
            self.tensors[name] = tensor

    def extend(self, new: dict[str, Tensor], index: Tensor, once: Once, trailing_pads: Tensor | None = None) -> Seen:
        """Append T tokens at row indices `index` (T,) or (B, T); return everything visible and its row indices (S,) or
        (B, S). `trailing_pads` (B,): pads at the end of these tokens, which a growing store then moves to the front."""
        raise TypeError(f"{', '.join(self.declared.shapes)}: not declared as PerToken, so tokens cannot be appended")

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes a copy of the old row rows[i] (beams, forks)."""
        self.tensors = {name: select_rows(tensor, rows, self.static) for name, tensor in self.tensors.items()}

    def truncate(self, dropped: int) -> None:
        """Remove the last `dropped` tokens."""

    def trim(self, length: int) -> None:
        """Remove everything before the last `length` columns."""

    def fork(self) -> Store:
        """Return an independent copy. Tensors that are only ever replaced, not written to, are shared."""
        tensors = {name: tensor.clone() if self.static else tensor for name, tensor in self.tensors.items()}
        return type(self)(self.declared, tensors, self.static)

    def adopt(self, other: Store, lengths: Tensor) -> None:
        """Copy, in place, the contents of a growing store of this mixer, whose rows have `lengths` (B,) tokens."""
        for name, tensor in other.tensors.items():
            self.replace(name, tensor if name in self.tensors else tensor.clone())

    def to_growing(self, lengths: Tensor, columns: int) -> Store:
        """Return a growing copy of rows of `lengths` (B,) tokens, each ending at the last of `columns` columns."""
        tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return type(self)(self.declared, tensors, static=False)

    def join(self, others: Sequence[Store]) -> None:
        """Append the rows of other growing stores of this mixer."""
        self.tensors = {name: torch.cat([store.tensors[name] for store in (self, *others)]) for name in self.tensors}


class CrossStore(Store):
    """Keys and values of an encoder's output. They do not change during decoding."""

    can_truncate = True

    def join(self, others: Sequence[Store]) -> None:
        for name in self.tensors:
            self.tensors[name] = stack_rows([store.tensors[name] for store in (self, *others)], self.axes[name])


class Growing(Store):
    """Tensors per token that grow with the text; with a window only the last `window` tokens are kept."""

    declared: PerToken

    def __init__(self, declared: StateSpec, tensors: dict[str, Tensor], static: bool) -> None:
        super().__init__(declared, tensors, static)
        self.append = {name: Appender() for name in declared.shapes}

    @property
    def can_truncate(self) -> bool:  # type: ignore[override]
        return self.declared.window is None  # a window has dropped older tokens

    def extend(self, new: dict[str, Tensor], index: Tensor, once: Once, trailing_pads: Tensor | None = None) -> Seen:
        if self.tensors:
            new = {name: self.append[name](self.tensors[name], t, self.axes[name]) for name, t in new.items()}
        self.tensors = new
        T, S = index.shape[-1], next(t.shape[self.axes[name]] for name, t in new.items())
        window = min(self.declared.window or S, S)
        if trailing_pads is not None:
            self.tensors = {n: realign(t, self.axes[n], trailing_pads, window) for n, t in new.items()}
        elif window < S:  # kept for later calls; this call still sees S tokens. Cloned to free the other tokens.
            self.tensors = {n: t.narrow(self.axes[n], S - window, window).clone() for n, t in new.items()}
        if S == T:
            return new, index
        return new, once(f"places {S}", lambda: index[:1] + torch.arange(T - S, T, device=index.device))

    def truncate(self, dropped: int) -> None:
        self.tensors = {n: t.narrow(self.axes[n], 0, t.shape[self.axes[n]] - dropped) for n, t in self.tensors.items()}

    def trim(self, length: int) -> None:
        for name, tensor in self.tensors.items():
            extra = max(tensor.shape[self.axes[name]] - length, 0)
            self.tensors[name] = tensor.narrow(self.axes[name], extra, tensor.shape[self.axes[name]] - extra)

    def join(self, others: Sequence[Store]) -> None:
        """Shorter rows begin at a later column, so that all rows end at the same one."""
        for name in self.tensors:
            tensors = [store.tensors[name] for store in (self, *others)]
            self.tensors[name] = stack_rows(tensors, self.axes[name], left=True)


class Static(Store):
    """Tensors per token with capacity for L tokens: the token with row index p is in column p."""

    declared: PerToken
    can_truncate = True

    def __init__(self, declared: StateSpec, tensors: dict[str, Tensor], static: bool) -> None:
        super().__init__(declared, tensors, static)
        self.room = next(t.shape[self.axes[name]] for name, t in tensors.items())
        self.alike = {name: f"lines of {tuple(t.shape[1 : self.axes[name] + 1])}" for name, t in tensors.items()}

    def extend(self, new: dict[str, Tensor], index: Tensor, once: Once, trailing_pads: Tensor | None = None) -> Seen:
        self.write(new, index, once)
        return self.tensors, self.reserve(index, once)[1]

    def write(self, new: dict[str, Tensor], columns: Tensor, once: Once) -> None:
        """Write to columns (T,) or (B, T). `index_copy_` on a flat view is fastest. A compiler might copy the tensor
        behind a view in each step, so compiled code uses `index_put_` on the tensor itself."""
        for name, tensor in new.items():
            table, dim, alike = self.tensors[name], self.axes[name], self.alike[name]
            if torch.compiler.is_compiling():
                table.index_put_(once(f"of {alike}", functools.partial(grid, table.shape[: dim + 1], columns)), tensor)
            else:
                at = once(alike, functools.partial(lines, table.shape[: dim + 1], columns))
                table.flatten(0, dim).index_copy_(0, at, tensor.flatten(0, dim))

    def reserve(self, index: Tensor, once: Once) -> tuple[Tensor, Tensor]:
        """For one token per row at row index `index` (B, 1): the columns (B, 1) to write, and the row indices (L,) or
        (B, L) of all columns after that."""
        return index, once("places", lambda: torch.arange(self.room, device=index.device))

    def column(self, places: Tensor) -> Tensor:
        """The columns of these row indices."""
        return places

    def places(self, lengths: Tensor) -> Tensor:
        """(B, L) the row index in each column after `lengths` (B, 1) tokens; outside the row for empty columns."""
        return torch.arange(self.room, device=lengths.device).expand(*lengths.shape[:-1], -1)

    def adopt(self, other: Store, lengths: Tensor) -> None:
        """Columns without a token are set to 0: they may contain NaN, and 0 times NaN is not 0."""
        end = lengths[:, None]
        places = self.places(end)
        for name, tensor in self.tensors.items():
            theirs = other.tensors[name]
            column = places - end + theirs.shape[self.axes[name]]
            tensor.copy_(pick_columns(theirs, self.axes[name], column, (places >= 0) & (places < end)))

    def to_growing(self, lengths: Tensor, columns: int) -> Store:
        count = min(columns, self.declared.window or columns)
        places = lengths[:, None] + torch.arange(-count, 0, device=lengths.device)
        column = self.column(places)
        found = {n: pick_columns(t, self.axes[n], column, places >= 0).contiguous() for n, t in self.tensors.items()}
        return Growing(self.declared, found, static=False)


class Ring(Static):
    """A static store of the last L tokens: the token with row index p is in column p modulo L."""

    can_truncate = False

    def column(self, places: Tensor) -> Tensor:
        return places % self.room

    def places(self, lengths: Tensor) -> Tensor:
        last = lengths - 1
        return last - (last - torch.arange(self.room, device=lengths.device)) % self.room

    def reserve(self, index: Tensor, once: Once) -> tuple[Tensor, Tensor]:
        L = self.room
        columns = once(f"ring columns {L}", lambda: index % L)
        return columns, once(f"ring places {L}", lambda: self.places(index + 1))

    def extend(self, new: dict[str, Tensor], index: Tensor, once: Once, trailing_pads: Tensor | None = None) -> Seen:
        L, T, begun = self.room, index.shape[-1], index[..., :1]
        if T == 1:
            columns, places = self.reserve(index, once)
            self.write(new, columns, once)
            return self.tensors, places
        # the first of these tokens still see tokens that the last ones overwrite
        seen = {name: torch.cat((self.tensors[name], t), dim=self.axes[name]) for name, t in new.items()}
        places, kept = once(f"ring places {L}", lambda: torch.cat((self.places(begun), index), dim=-1)), min(L, T)
        last = {name: t.narrow(self.axes[name], T - kept, kept) for name, t in new.items()}
        self.write(last, once(f"ring columns {L}", lambda: index[..., -L:] % L), once)
        return seen, places
