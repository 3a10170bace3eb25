"""Decoding state: the KV cache, and whatever else a mixer remembers between decoding steps.

A mixer's module declares in `state_spec()` what it remembers: something of every token (`PerToken`), of a fixed size a
row (`PerRow`), or made once from what an encoder said (`PerMemory`). Where that is kept is a `Store`: a growing one
lengthens with the text, all rows ending at the same column (pads behind a row are moved before it); a static one is
allocated once, and each row is written in place at its own length, so that a step keeps its shapes and addresses and
can be recorded. Pages would be one more class of the same interface. Stores know names and shapes, and no architecture.

B rows, S tokens held, L room for tokens, T new tokens.
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

from anyformer.kernels.append import Appender
from anyformer.kernels.rows import grid, lines, mask_or_ones, pick_columns, realign, select_rows, stack_rows

Once = Callable[[str, Callable[[], Any]], Any]  # does what many stores share for the first of them
Seen = tuple[dict[str, Tensor], Tensor]  # something of each token by name, and the tokens' places in the rows

# -- what is remembered ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Declared:
    """What a mixer remembers: names -> shapes, and the dtypes of those that do not take the model's."""

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, torch.dtype] = dataclasses.field(default_factory=dict, kw_only=True)

    def sizes(self, rows: int, tokens: int, memory: int = 0) -> dict[str, tuple[int, ...]]:
        """Shapes with all that is held of so many rows, after so many tokens, beside a memory of so many places."""
        raise NotImplementedError

    def store(self, rows: int, capacity: int | None, dtype: torch.dtype, device: torch.device) -> Store:
        """An empty one: growing, or static with room for `capacity` tokens."""
        raise NotImplementedError

    def nbytes(self, rows: int, tokens: int, dtype: torch.dtype, memory: int = 0) -> int:
        sizes = self.sizes(rows, tokens, memory)
        return sum(math.prod(size) * self.dtypes.get(name, dtype).itemsize for name, size in sizes.items())

    def zeros(self, rows: int, tokens: int, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
        sizes = self.sizes(rows, tokens)
        return {n: torch.zeros(size, dtype=self.dtypes.get(n, dtype), device=device) for n, size in sizes.items()}


@dataclasses.dataclass(frozen=True)
class PerToken(Declared):
    """Something of every token, or of the last `window`. Tokens stand before the last dimension: keys (G, K) are held
    as (B, G, S, K), a vector (W,) as (B, S, W) and a number () as (B, S)."""

    window: int | None = None

    def sizes(self, rows: int, tokens: int, memory: int = 0) -> dict[str, tuple[int, ...]]:
        return {n: held_shape(shape, rows, min(tokens, self.window or tokens)) for n, shape in self.shapes.items()}

    def store(self, rows: int, capacity: int | None, dtype: torch.dtype, device: torch.device) -> Store:
        if capacity is None:
            return Growing(self, {}, static=False)
        kind = Ring if self.window is not None and self.window < capacity else Static
        return kind(self, self.zeros(rows, capacity, dtype, device), static=True)


@dataclasses.dataclass(frozen=True)
class PerRow(Declared):
    """Something of a fixed size, whatever the length of the text."""

    def sizes(self, rows: int, tokens: int, memory: int = 0) -> dict[str, tuple[int, ...]]:
        return {name: (rows, *shape) for name, shape in self.shapes.items()}

    def store(self, rows: int, capacity: int | None, dtype: torch.dtype, device: torch.device) -> Store:
        return Store(self, self.zeros(rows, capacity or 0, dtype, device), static=capacity is not None)


@dataclasses.dataclass(frozen=True)
class PerMemory(Declared):
    """Something of every place of the memory, made once a text; held like PerToken's."""

    def sizes(self, rows: int, tokens: int, memory: int = 0) -> dict[str, tuple[int, ...]]:
        return {name: held_shape(shape, rows, memory) for name, shape in self.shapes.items()}

    def store(self, rows: int, capacity: int | None, dtype: torch.dtype, device: torch.device) -> Store:
        return Made(self, {}, static=capacity is not None)


def axis(shape: tuple[int, ...]) -> int:
    """Where places stand in what is held of something that has this shape at each."""
    return max(len(shape), 1)


def held_shape(shape: tuple[int, ...], rows: int, places: int) -> tuple[int, ...]:
    held = (rows, *shape)
    return (*held[: axis(shape)], places, *held[axis(shape) :])


# -- where it is kept --------------------------------------------------------------------------------------------------


class Store:
    """The memory of one mixer: tensors by name, rows first. This kind holds what has a fixed size."""

    can_truncate = False  # whether later tokens can be forgotten again

    def __init__(self, declared: Declared, tensors: dict[str, Tensor], static: bool) -> None:
        self.declared, self.tensors, self.static = declared, tensors, static
        self.axes = {name: axis(shape) for name, shape in declared.shapes.items()}

    def replace(self, name: str, tensor: Tensor) -> None:
        """By name; in place where static, so that a recorded step finds its tensors where they were."""
        if self.static and name in self.tensors:
            self.tensors[name].copy_(tensor)
        else:
            self.tensors[name] = tensor

    def extend(self, new: dict[str, Tensor], index: Tensor, once: Once, behind: Tensor | None = None) -> Seen:
        """Something of T tokens at row places `index` (T,) or (B, T) in; all that can be seen, and where it stands in
        the rows, (S,) or (B, S), out. `behind` (B,): pads that these end in, which a growing store moves before its
        rows once they were seen."""
        raise TypeError(f"{', '.join(self.declared.shapes)}: not declared as something that each token has (PerToken)")

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes a copy of old row rows[i] (beams, forks)."""
        self.tensors = {name: select_rows(tensor, rows, self.static) for name, tensor in self.tensors.items()}

    def truncate(self, dropped: int) -> None:
        """Forgets the last `dropped` tokens."""

    def trim(self, length: int) -> None:
        """Forgets what was before the last `length` columns."""

    def fork(self) -> Store:
        """A copy that goes its own way. Tensors that are replaced, never written into, are shared."""
        tensors = {name: tensor.clone() if self.static else tensor for name, tensor in self.tensors.items()}
        return type(self)(self.declared, tensors, self.static)

    def adopt(self, other: Store, lengths: Tensor) -> None:
        """Takes over, in place, what a growing store of this mixer holds of rows of `lengths` (B,)."""
        for name, tensor in other.tensors.items():
            self.replace(name, tensor if name in self.tensors else tensor.clone())

    def to_growing(self, lengths: Tensor, columns: int) -> Store:
        """A growing copy of what is held of rows of `lengths` (B,), each to end at the last of so many columns."""
        tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return type(self)(self.declared, tensors, static=False)

    def join(self, others: Sequence[Store]) -> None:
        """Takes in the rows of other growing stores of this mixer, behind its own."""
        self.tensors = {name: torch.cat([store.tensors[name] for store in (self, *others)]) for name in self.tensors}


class Made(Store):
    """What is made of a memory, which stays as it is while a text is written."""

    can_truncate = True

    def join(self, others: Sequence[Store]) -> None:
        for name in self.tensors:
            self.tensors[name] = stack_rows([store.tensors[name] for store in (self, *others)], self.axes[name])


class Growing(Store):
    """Something of each token, the new behind the old; only the last `window` stay where one is declared."""

    declared: PerToken

    def __init__(self, declared: Declared, tensors: dict[str, Tensor], static: bool) -> None:
        super().__init__(declared, tensors, static)
        self.append = {name: Appender() for name in declared.shapes}

    @property
    def can_truncate(self) -> bool:  # type: ignore[override]
        return self.declared.window is None  # what a window dropped is gone

    def extend(self, new: dict[str, Tensor], index: Tensor, once: Once, behind: Tensor | None = None) -> Seen:
        if self.tensors:
            new = {name: self.append[name](self.tensors[name], t, self.axes[name]) for name, t in new.items()}
        self.tensors = new
        T, S = index.shape[-1], next(t.shape[self.axes[name]] for name, t in new.items())
        window = min(self.declared.window or S, S)
        if behind is not None:
            self.tensors = {n: realign(t, self.axes[n], behind, window) for n, t in new.items()}
        elif window < S:  # only now, for the queries of this call still see `window` back; a copy, so that it is freed
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
        """Shorter rows begin at a later column, so that all of them end at the same."""
        for name in self.tensors:
            held = [store.tensors[name] for store in (self, *others)]
            self.tensors[name] = stack_rows(held, self.axes[name], left=True)


class Static(Store):
    """Something of each token in a tensor with room for L: the one at row place p stands in column p."""

    declared: PerToken
    can_truncate = True

    def __init__(self, declared: Declared, tensors: dict[str, Tensor], static: bool) -> None:
        super().__init__(declared, tensors, static)
        self.room = next(t.shape[self.axes[name]] for name, t in tensors.items())
        self.alike = {name: f"lines of {tuple(t.shape[1 : self.axes[name] + 1])}" for name, t in tensors.items()}

    def extend(self, new: dict[str, Tensor], index: Tensor, once: Once, behind: Tensor | None = None) -> Seen:
        self.write(new, index, once)
        return self.tensors, self.reserve(index, once)[1]

    def write(self, new: dict[str, Tensor], columns: Tensor, once: Once) -> None:
        """Into columns (T,) or (B, T): as lines of one long table, which is the fastest way, or through an index into
        the tensor itself, which a compiler writes in place (of a view it might copy the whole tensor, each step)."""
        for name, tensor in new.items():
            held, dim, alike = self.tensors[name], self.axes[name], self.alike[name]
            if torch.compiler.is_compiling():
                held.index_put_(once(f"of {alike}", functools.partial(grid, held.shape[: dim + 1], columns)), tensor)
            else:
                at = once(alike, functools.partial(lines, held.shape[: dim + 1], columns))
                held.flatten(0, dim).index_copy_(0, at, tensor.flatten(0, dim))

    def reserve(self, index: Tensor, once: Once) -> tuple[Tensor, Tensor]:
        """For one token a row at places `index` (B, 1): the columns (B, 1) to write it to, and the row places (L,) or
        (B, L) of all that is held then."""
        return index, once("places", lambda: torch.arange(self.room, device=index.device))

    def column(self, places: Tensor) -> Tensor:
        """Where what is at these row places stands."""
        return places

    def places(self, lengths: Tensor) -> Tensor:
        """(B, L) the row place that each column holds after `lengths` (B, 1) tokens; none of the row's where none."""
        return torch.arange(self.room, device=lengths.device).expand(*lengths.shape[:-1], -1)

    def adopt(self, other: Store, lengths: Tensor) -> None:
        """What was in a column may be anything, and 0 times anything may not be 0: those without a token become 0."""
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
    """L is the window: what is at row place p stands in column p modulo L."""

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

    def extend(self, new: dict[str, Tensor], index: Tensor, once: Once, behind: Tensor | None = None) -> Seen:
        L, T, begun = self.room, index.shape[-1], index[..., :1]
        if T == 1:
            columns, places = self.reserve(index, once)
            self.write(new, columns, once)
            return self.tensors, places
        # the first of these tokens still see what the last of them overwrite
        seen = {name: torch.cat((self.tensors[name], t), dim=self.axes[name]) for name, t in new.items()}
        places, kept = once(f"ring places {L}", lambda: torch.cat((self.places(begun), index), dim=-1)), min(L, T)
        last = {name: t.narrow(self.axes[name], T - kept, kept) for name, t in new.items()}
        self.write(last, once(f"ring columns {L}", lambda: index[..., -L:] % L), once)
        return seen, places


# -- of a whole model --------------------------------------------------------------------------------------------------


class State:
    """The memory of a whole model: a store an address, how many tokens it holds, and which of them are real."""

    def __init__(self, stores: dict[str, Store], *, past: int | Tensor = 0, capacity: int | None = None) -> None:
        self.stores = stores
        self.past = past  # of every row, pads counted, where growing; of each (B,) where static
        self.capacity = capacity
        self.texts: int | None = None  # rows of the last tokens; None: not known
        self.padding: Tensor | None = None  # (B, past) where growing, (B, capacity) where static; None: all are real
        self.behind: Tensor | None = None  # (B,) while a step is taken: pads that its tokens end in
        self.realigned = False  # whether such pads were moved before their rows, which all end at the last column again
        self.memory: Tensor | None = None  # what the encoder said, for encoder-decoders
        self.memory_padding: Tensor | None = None

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
        """Stores for every mixer of `model` that declares one: growing, or static with room for `capacity` tokens."""
        like = next(model.parameters())
        dtype, device = dtype or like.dtype, device or like.device
        stores = {at: each.store(batch_size, capacity, dtype, device) for at, each in declarations(model)}
        past = 0 if capacity is None else torch.zeros(batch_size, dtype=torch.long, device=device)
        return cls(stores, past=past, capacity=capacity)

    def look_at(self, memory: Tensor | None, padding: Tensor | None) -> None:
        """What is seen beside the text from now on. A static state takes copies: it is written in place, and what a
        caller gave is not its own."""
        if self.capacity is not None:
            memory, padding = (None if each is None else each.clone() for each in (memory, padding))
        self.memory, self.memory_padding = memory, padding

    def advance(self, num_tokens: int) -> None:
        """The step is done: its tokens are past now. In place where static: a recorded step counts on."""
        self.past += num_tokens
        if self.behind is not None and self.padding is not None:
            self.padding = realign(self.padding, 1, self.behind, self.padding.shape[1])
            self.behind, self.realigned = None, True

    @property
    def length(self) -> int:
        """Tokens of the longest row."""
        return self.past if isinstance(self.past, int) else int(self.past.max())

    @property
    def lengths(self) -> Tensor:
        """(B,) tokens of each row; in a growing state those from its first real one on."""
        if isinstance(self.past, Tensor):
            return self.past
        if self.padding is None:
            return torch.full((self.rows,), self.past, device=next(self.tensors()).device)
        return (self.padding.cumsum(1) > 0).sum(1)

    @property
    def holes(self) -> Tensor | None:
        """(B, S) which places of each row are real, from the first that is; None where all are."""
        if self.padding is None or isinstance(self.past, Tensor):
            return self.padding
        places = torch.arange(self.past, device=self.padding.device) + (self.past - self.lengths)[:, None]
        real = pick_columns(self.padding, 1, places, places < self.past) | (places >= self.past)
        return None if bool(real.all()) else real

    def tensors(self) -> Iterator[Tensor]:
        return (tensor for store in self.stores.values() for tensor in store.tensors.values())

    @property
    def rows(self) -> int:
        return max(tensor.shape[0] for tensor in self.tensors())

    def check_rows(self, rows: int) -> None:
        """ValueError where it holds other texts than these."""
        held = len(self.past) if isinstance(self.past, Tensor) else self.texts if self.past else None
        if held is not None and held != rows:
            raise ValueError(f"past_key_values holds {held} texts, got tokens of {rows}")
        self.texts = rows

    @property
    def nbytes(self) -> int:
        """Of all that is held."""
        return sum(tensor.nbytes for tensor in self.tensors())

    @property
    def keeps_tokens(self) -> bool:
        """Whether something is kept of each token, by the place where it stands."""
        return any(isinstance(store.declared, PerToken) for store in self.stores.values())

    @property
    def can_truncate(self) -> bool:
        """Whether tokens can be forgotten; a window or a recurrence has to be forked and read again instead."""
        return all(store.can_truncate for store in self.stores.values())

    def reorder(self, rows: Tensor, same_memory: bool = False) -> None:
        """Row i of everything becomes a copy of old row rows[i]. `same_memory`: both read the same source, so that what
        was made of it can stay."""
        for store in self.stores.values():
            if not (same_memory and isinstance(store, Made)):
                store.reorder(rows)
        self.texts = len(rows)
        for name in PER_ROW[:2] if same_memory else PER_ROW:
            value = getattr(self, name)
            if isinstance(value, Tensor):
                setattr(self, name, select_rows(value, rows, self.capacity is not None))

    def truncate(self, length: int) -> None:
        """Forgets all but the first `length` tokens of the longest row, and as many of the others."""
        dropped = self.length - length
        if not 0 <= dropped <= (self.past if isinstance(self.past, int) else int(self.past.min())):
            raise ValueError(f"a state of {self.length} tokens cannot be cut to {length}")
        if dropped == 0:
            return
        bad = next((address for address, store in self.stores.items() if not store.can_truncate), None)
        if bad is not None:
            raise ValueError(f"{bad} has overwritten what was before its last tokens: fork the state and read again")
        for store in self.stores.values():
            store.truncate(dropped)
        self.past -= dropped
        if self.padding is not None and isinstance(self.past, Tensor):  # what comes next is real
            self.padding |= torch.arange(self.padding.shape[1], device=self.past.device) >= self.past[:, None]
        elif self.padding is not None:
            self.padding = self.padding[:, :length]

    def trim(self, count: int) -> None:
        """Forgets the first `count` columns, which are pads in every row of a growing state."""
        assert isinstance(self.past, int) and self.padding is not None
        self.past -= count
        for store in self.stores.values():
            store.trim(self.past)
        self.padding = None if bool(self.padding[:, count:].all()) else self.padding[:, count:]

    def fork(self) -> State:
        """A copy that goes its own way: two texts after one prompt."""
        stores = {address: store.fork() for address, store in self.stores.items()}
        copy, static = State(stores, past=self.past, capacity=self.capacity), self.capacity is not None
        copy.realigned, copy.texts = self.realigned, self.texts
        for name in PER_ROW:
            value = getattr(self, name)
            setattr(copy, name, value.clone() if static and isinstance(value, Tensor) else value)
        return copy

    def adopt(self, other: State) -> None:
        """A static state takes over, in place, what a growing one of as many rows holds. Each row begins with its first
        real token: pads on the left are left behind."""
        assert isinstance(self.past, Tensor) and self.capacity is not None
        for address, store in self.stores.items():
            store.adopt(other.stores[address], other.lengths)
        self.past.copy_(other.lengths)
        holes = other.holes
        row = None if holes is None else F.pad(holes, (0, self.capacity - holes.shape[1]), value=True)
        for name, theirs in (("padding", row), ("memory", other.memory), ("memory_padding", other.memory_padding)):
            mine = getattr(self, name)
            if mine is None or theirs is None:
                setattr(self, name, None if theirs is None else theirs.clone())
            else:
                mine.copy_(theirs)

    def to_growing(self, columns: int | None = None) -> State:
        """A growing copy of a static state, to go on from: each row ends at the last of so many columns."""
        columns, end = self.length if columns is None else columns, self.lengths[:, None]
        copy = State({at: store.to_growing(self.lengths, columns) for at, store in self.stores.items()}, past=columns)
        places = end + torch.arange(-columns, 0, device=end.device)
        real = places >= 0 if self.padding is None else pick_columns(self.padding, 1, places, places >= 0)
        copy.padding = None if bool(real.all()) else real
        if self.memory is not None:
            copy.memory = self.memory.clone()
            copy.memory_padding = None if self.memory_padding is None else self.memory_padding.clone()
        return copy

    @staticmethod
    def concatenate(states: Sequence[State]) -> State:
        """The rows of several growing states in one, whatever their lengths: shorter ones are padded on the left."""
        if any(state.capacity is not None for state in states):
            raise ValueError("the rows of a static state stay where they are: only growing ones can be concatenated")
        if any(state.length == 0 for state in states):
            raise ValueError("an empty state has no rows to concatenate")
        out = states[0].fork()
        out.past, out.texts = max(state.length for state in states), None
        for address, store in out.stores.items():
            store.join([state.stores[address] for state in states[1:]])
        device = next(out.tensors()).device
        real = [mask_or_ones(state.padding, (state.rows, state.length), device) for state in states]
        padding = stack_rows(real, 1, left=True)
        out.padding, out.realigned = None if bool(padding.all()) else padding, any(s.realigned for s in states)
        if out.memory is not None:
            read = [(state.memory, state.memory_padding) for state in states if state.memory is not None]
            out.memory = stack_rows([memory for memory, _ in read], 1)
            out.memory_padding = stack_rows([mask_or_ones(mask, memory.shape[:2], device) for memory, mask in read], 1)
        return out


PER_ROW = ("past", "padding", "memory", "memory_padding")  # what a state itself has of each row


def declarations(model: nn.Module, modules: Iterable[tuple[str, Any]] | None = None) -> Iterator[tuple[str, Declared]]:
    """(address, what it declares) of every mixer that remembers something; an encoder or a tower beside what is
    written from left to right reads once and need not."""
    written = getattr(getattr(model, "spec", None), "left_to_right", ())
    for address, module in stateful_modules(model) if modules is None else modules:
        if hasattr(type(module), "state_spec") and (not written or address.split(".")[0] in (*written, "head")):
            declared = module.state_spec()
            if declared is not None:
                yield address, declared


def stateful_modules(module: nn.Module, address: str = "") -> list[tuple[str, Any]]:
    """(address, module) of those that may have a state. A pass that makes one waits for this, so that it is faster than
    `named_modules`."""
    found: list[tuple[str, Any]] = [(address, module)] if hasattr(type(module), "state_spec") else []
    for name, child in module._modules.items():
        if child is not None and (child._modules or hasattr(type(child), "state_spec")):
            found += stateful_modules(child, f"{address}.{name}" if address else name)
    return found
