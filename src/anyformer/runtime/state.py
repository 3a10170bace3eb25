"""Decoding state: the KV cache, and everything else that mixers keep between decoding steps.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.batch_rows import grid, lines, mask_or_ones, pick_columns, realign, select_rows, stack_rows
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


# -- the state of a model ----------------------------------------------------------------------------------------------


class State:
    """The decoding state of a model: one store per address, the number of cached tokens, and which of them are real."""

    def __init__(self, stores: dict[str, Store], *, past: int | Tensor = 0, capacity: int | None = None) -> None:
        self.stores = stores
        self.past = past  # cached tokens; growing: the same number in all rows, padding included; static: (B,)
        self.capacity = capacity
        self.batch_size: int | None = None  # rows of the last call; None: unknown
        self.is_token: Tensor | None = None  # (B, past) if growing, (B, capacity) if static; None: no padding
        self.trailing_pads: Tensor | None = None  # (B,) during a step: pads at the end of its tokens
        self.realigned = False  # whether trailing pads were moved to the front
        self.memory: Tensor | None = None  # the encoder's output, for encoder-decoders
        self.memory_is_token: Tensor | None = None

    @classmethod
    def allocate(
        cls,
        model: nn.Module,
        batch_size: int,
        *,
        capacity: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> State:
        """Return a state for every mixer of `model` that declares one: growing, or static with `capacity` tokens."""
        like = next(model.parameters())
        dtype, device = dtype or like.dtype, device or like.device
        stores = {at: each.store(batch_size, capacity, dtype, device) for at, each in declarations(model)}
        past = 0 if capacity is None else torch.zeros(batch_size, dtype=torch.long, device=device)
        return cls(stores, past=past, capacity=capacity)

    def set_memory(self, memory: Tensor | None, is_token: Tensor | None) -> None:
        """Set the encoder output for cross-attention. A static state copies it, because it is written in place."""
        if self.capacity is not None:
            memory, is_token = (None if each is None else each.clone() for each in (memory, is_token))
        self.memory, self.memory_is_token = memory, is_token

    def advance(self, num_tokens: int) -> None:
        """End a step: count its tokens as cached. In place if static, so that a captured step counts too."""
        self.past += num_tokens
        if self.trailing_pads is not None and self.is_token is not None:
            self.is_token = realign(self.is_token, 1, self.trailing_pads, self.is_token.shape[1])
            self.trailing_pads, self.realigned = None, True

    @property
    def length(self) -> int:
        """The number of tokens of the longest row."""
        return self.past if isinstance(self.past, int) else int(self.past.max())

    @property
    def lengths(self) -> Tensor:
        """(B,) the number of tokens of each row, without padding before its first real token."""
        if isinstance(self.past, Tensor):
            return self.past
        if self.is_token is None:
            return torch.full((self.rows,), self.past, device=next(self.tensors()).device)
        return (self.is_token.cumsum(1) > 0).sum(1)

    @property
    def holes(self) -> Tensor | None:
        """(B, S) True for real tokens; each row starts at its first real token. None: no padding after that."""
        if self.is_token is None or isinstance(self.past, Tensor):
            return self.is_token
        places = torch.arange(self.past, device=self.is_token.device) + (self.past - self.lengths)[:, None]
        real = pick_columns(self.is_token, 1, places, places < self.past) | (places >= self.past)
        return None if bool(real.all()) else real

    def tensors(self) -> Iterator[Tensor]:
        return (tensor for store in self.stores.values() for tensor in store.tensors.values())

    @property
    def rows(self) -> int:
        return max(tensor.shape[0] for tensor in self.tensors())

    def check_rows(self, rows: int) -> None:
        """Raise ValueError if the state has a different number of rows."""
        cached_rows = len(self.past) if isinstance(self.past, Tensor) else self.batch_size if self.past else None
        if cached_rows is not None and cached_rows != rows:
            raise ValueError(f"past_key_values has {cached_rows} rows, but the inputs have {rows}")
        self.batch_size = rows

    @property
    def nbytes(self) -> int:
        """The size of all stored tensors."""
        return sum(tensor.nbytes for tensor in self.tensors())

    @property
    def keeps_tokens(self) -> bool:
        """Whether a store keeps tensors per token."""
        return any(isinstance(store.declared, PerToken) for store in self.stores.values())

    @property
    def can_truncate(self) -> bool:
        """Whether the last tokens can be removed. If not (windows, recurrences), fork the state before reading them."""
        return all(store.can_truncate for store in self.stores.values())

    def reorder(self, rows: Tensor, same_memory: bool = False) -> None:
        """Replace row i by the old row rows[i] in every store. `same_memory`: both rows attend to the same encoder
        output, so its keys and values are not copied."""
        for store in self.stores.values():
            if not (same_memory and isinstance(store, CrossStore)):
                store.reorder(rows)
        self.batch_size = len(rows)
        for name in PER_ROW[:2] if same_memory else PER_ROW:
            value = getattr(self, name)
            if isinstance(value, Tensor):
                setattr(self, name, select_rows(value, rows, self.capacity is not None))

    def truncate(self, length: int) -> None:
        """Shorten the longest row to `length` tokens; remove the same number of tokens from the other rows."""
        dropped = self.length - length
        if not 0 <= dropped <= (self.past if isinstance(self.past, int) else int(self.past.min())):
            raise ValueError(f"a state of {self.length} tokens cannot be truncated to {length}")
        if dropped == 0:
            return
        bad = next((address for address, store in self.stores.items() if not store.can_truncate), None)
        if bad is not None:
            raise ValueError(f"{bad} has overwritten earlier tokens and cannot be truncated: fork the state earlier")
        for store in self.stores.values():
            store.truncate(dropped)
        self.past -= dropped
        if self.is_token is not None and isinstance(self.past, Tensor):  # columns of future tokens count as real
            self.is_token |= torch.arange(self.is_token.shape[1], device=self.past.device) >= self.past[:, None]
        elif self.is_token is not None:
            self.is_token = self.is_token[:, :length]

    def trim(self, count: int) -> None:
        """Remove the first `count` columns of a growing state; they are padding in every row."""
        assert isinstance(self.past, int) and self.is_token is not None
        self.past -= count
        for store in self.stores.values():
            store.trim(self.past)
        self.is_token = None if bool(self.is_token[:, count:].all()) else self.is_token[:, count:]

    def fork(self) -> State:
        """Return an independent copy: two continuations of one prompt."""
        stores = {address: store.fork() for address, store in self.stores.items()}
        copy, static = State(stores, past=self.past, capacity=self.capacity), self.capacity is not None
        copy.realigned, copy.batch_size = self.realigned, self.batch_size
        for name in PER_ROW:
            value = getattr(self, name)
            setattr(copy, name, value.clone() if static and isinstance(value, Tensor) else value)
        return copy

    def adopt(self, other: State) -> None:
        """Copy a growing state with the same number of rows into this static one, in place. Left padding is dropped,
        so each row begins with its first real token."""
        assert isinstance(self.past, Tensor) and self.capacity is not None
        for address, store in self.stores.items():
            store.adopt(other.stores[address], other.lengths)
        self.past.copy_(other.lengths)
        holes = other.holes
        row = None if holes is None else F.pad(holes, (0, self.capacity - holes.shape[1]), value=True)
        for name, theirs in (("is_token", row), ("memory", other.memory), ("memory_is_token", other.memory_is_token)):
            mine = getattr(self, name)
            if mine is None or theirs is None:
                setattr(self, name, None if theirs is None else theirs.clone())
            else:
                mine.copy_(theirs)

    def to_growing(self, columns: int | None = None) -> State:
        """Return a growing copy of a static state: each row ends at the last of `columns` columns."""
        columns, end = self.length if columns is None else columns, self.lengths[:, None]
        copy = State({at: store.to_growing(self.lengths, columns) for at, store in self.stores.items()}, past=columns)
        places = end + torch.arange(-columns, 0, device=end.device)
        real = places >= 0 if self.is_token is None else pick_columns(self.is_token, 1, places, places >= 0)
        copy.is_token = None if bool(real.all()) else real
        if self.memory is not None:
            copy.memory = self.memory.clone()
            copy.memory_is_token = None if self.memory_is_token is None else self.memory_is_token.clone()
        return copy

    @staticmethod
    def concatenate(states: Sequence[State]) -> State:
        """Join the rows of several growing states of any lengths; shorter ones are padded on the left."""
        if any(state.capacity is not None for state in states):
            raise ValueError("only growing states can be concatenated, got a static one")
        if any(state.length == 0 for state in states):
            raise ValueError("an empty state cannot be concatenated")
        out = states[0].fork()
        out.past, out.batch_size = max(state.length for state in states), None
        for address, store in out.stores.items():
            store.join([state.stores[address] for state in states[1:]])
        device = next(out.tensors()).device
        real = [mask_or_ones(state.is_token, (state.rows, state.length), device) for state in states]
        is_token = stack_rows(real, 1, left=True)
        out.is_token, out.realigned = None if bool(is_token.all()) else is_token, any(s.realigned for s in states)
        if out.memory is not None:
            read = [(state.memory, state.memory_is_token) for state in states if state.memory is not None]
            out.memory = stack_rows([memory for memory, _ in read], 1)
            out.memory_is_token = stack_rows([mask_or_ones(mask, memory.shape[:2], device) for memory, mask in read], 1)
        return out


PER_ROW = ("past", "is_token", "memory", "memory_is_token")  # attributes of a state that have one entry per row


def declarations(model: nn.Module, modules: Iterable[tuple[str, Any]] | None = None) -> Iterator[tuple[str, StateSpec]]:
    """Yield (address, declaration) of every mixer with a state. In a model that decodes from left to right, encoders
    and towers run once and are skipped."""
    written = getattr(getattr(model, "spec", None), "left_to_right", ())
    for address, module in stateful_modules(model) if modules is None else modules:
        if hasattr(type(module), "state_spec") and (not written or address.split(".")[0] in (*written, "head")):
            declared = module.state_spec()
            if declared is not None:
                yield address, declared


def stateful_modules(module: nn.Module, address: str = "") -> list[tuple[str, Any]]:
    """Return (address, module) of all modules that may have a state; faster than `named_modules`."""
    found: list[tuple[str, Any]] = [(address, module)] if hasattr(type(module), "state_spec") else []
    for name, child in module._modules.items():
        if child is not None and (child._modules or hasattr(type(child), "state_spec")):
            found += stateful_modules(child, f"{address}.{name}" if address else name)
    return found
