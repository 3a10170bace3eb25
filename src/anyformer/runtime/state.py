"""The decoding state of a model: one store per mixer (stores.py), the number of cached tokens, and which are real.

B rows, S cached tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.batch_rows import mask_or_ones, pick_columns, realign, select_rows, stack_rows
from anyformer.runtime.stores import CrossStore, PerToken, StateSpec, Store


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


@runtime_checkable
class HasState(Protocol):
    """A mixer that may have a decoding state."""

    def state_spec(self) -> StateSpec | None: ...


class MayHaveState(dict[type, bool]):
    """Class of a module -> whether it may have a decoding state. Every forward pass asks for all modules, and a check
    of a protocol takes long."""

    def __missing__(self, kind: type) -> bool:
        self[kind] = issubclass(kind, HasState)
        return self[kind]


may_have_state = MayHaveState()


def declarations(model: nn.Module, modules: Iterable[tuple[str, Any]] | None = None) -> Iterator[tuple[str, StateSpec]]:
    """Yield (address, declaration) of every mixer with a state. In a model that decodes from left to right, encoders
    and towers run once and are skipped."""
    written = getattr(getattr(model, "spec", None), "left_to_right", ())
    for address, module in stateful_modules(model) if modules is None else modules:
        if may_have_state[type(module)] and (not written or address.split(".")[0] in (*written, "head")):
            declared = module.state_spec()
            if declared is not None:
                yield address, declared


def stateful_modules(module: nn.Module, address: str = "") -> list[tuple[str, Any]]:
    """Return (address, module) of all modules that may have a state; faster than `named_modules`."""
    found: list[tuple[str, Any]] = [(address, module)] if may_have_state[type(module)] else []
    for name, child in module._modules.items():
        if child is not None and (child._modules or may_have_state[type(child)]):
            found += stateful_modules(child, f"{address}.{name}" if address else name)
    return found
