"""The context of a forward pass: one small typed object that every sublayer receives, instead of `**kwargs`.

Three words for "where a token is", used in the whole package:
- row index (`index`): the token's number in its row of the batch. Padding and cached tokens count. Masks compare these.
- position (`positions`): the token's number in its text. Padding does not count. Embeddings and RoPE use these.
- column: an index into a cache tensor. In a ring cache it differs from the row index.

B batch, T tokens of this call, S visible tokens (cached ones included), M memory length, D width.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from anyformer.kernels.attention import Visible
from anyformer.runtime.state import State
from anyformer.runtime.stores import Store
from anyformer.runtime.taps import Listener, Taps, Watched
from anyformer.runtime.visibility import Order, Predicate, see

E = TypeVar("E")


@dataclasses.dataclass(frozen=True)
class Memory:
    """The hidden states that cross-attention attends to, usually the encoder's output."""

    states: Tensor  # (B, M, D)
    is_token: Tensor | None = None  # (B, M) True for real tokens, False for padding; None: no padding
    documents: Tensor | None = None  # (B, M) packed document of each token


class InputExtra:
    """An extra made from one integer input of a call: `class Tree(InputExtra, name="tree_parents")`. Parts that read it
    name the class in `extra_inputs`."""

    by_input: ClassVar[dict[str, type[InputExtra]]] = {}
    name: ClassVar[str]

    def __init_subclass__(cls, name: str) -> None:
        cls.name = name
        cls.by_input[name] = cls

    @staticmethod
    def shape(length: int) -> tuple[int, ...]:
        """Return the shape of the input for one row of `length` tokens."""
        return (length,)


def input_extras(inputs: Mapping[str, Any]) -> tuple[InputExtra, ...]:
    makers: dict[str, Any] = InputExtra.by_input
    return tuple(make(inputs[name]) for name, make in makers.items() if inputs.get(name) is not None)


@dataclasses.dataclass(frozen=True)
class TokenIds(InputExtra, name="input_ids"):
    """The token ids of this call, if it was called with ids."""

    ids: Tensor  # (B, T)


@dataclasses.dataclass(frozen=True)
class StackOutputs:
    """Named model outputs that a stack computes in addition to its hidden states (XLNet's `mems`)."""

    fields: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Context:
    """One forward pass through one stack. Data that only few families need is in `extras`, at most one per class."""

    index: Tensor  # (T,) or (B, T) row index of each token
    positions: Tensor  # (1 or B, T) position of each token in its text
    is_token: Tensor | None = None  # (B, S) True for real tokens, False for padding; None: no padding
    documents: Tensor | None = None  # (B, T) packed document of each token
    memory: Memory | None = None
    key_states: Tensor | None = None  # (B, S, D) source of keys and values if longer than the queries (Funnel)
    state: State | None = None
    bias: Tensor | None = None  # (1, H, T, S) position bias shared by all layers of a stack (T5)
    kernel: str = "auto"
    row_length: int | None = None  # without a state: more than every row index; None if that is not known
    taps: Taps | None = None
    extras: tuple[Any, ...] = ()
    shared: dict[str, Any] = dataclasses.field(default_factory=dict)  # see `once`
    losses: dict[str, list[Tensor]] = dataclasses.field(default_factory=dict)  # router losses by name, one per layer

    def extra(self, kind: type[E]) -> E | None:
        """Return the extra of this class, or None."""
        for each in self.extras:
            if isinstance(each, kind):
                return each
        return None

    def replace(self, *extras: Any, **changes: Any) -> Context:
        """Return a copy with changed fields. An object in `extras` replaces the existing extra of its class."""
        if "index" in changes:
            changes.setdefault("row_length", None)
        if not extras:
            return dataclasses.replace(self, **changes)
        kinds = tuple(type(each) for each in extras)
        kept = tuple(each for each in self.extras if not isinstance(each, kinds))
        return dataclasses.replace(self, extras=(*kept, *extras), **changes)

    @property
    def tokens(self) -> Tensor | None:
        """(B, T) True for real tokens of this call; None: no padding."""
        return None if self.is_token is None else self.of_these(self.is_token)

    def of_these(self, values: Tensor) -> Tensor:
        """Select the tokens of this call: (B, S, ...) over all cached tokens -> (B, T, ...)."""
        if self.state is not None and self.state.capacity is not None:
            return select_tokens(values, self.index)
        return values[:, -self.index.shape[-1] :]

    def key_indices(self) -> Tensor:
        """(S,) row indices of all keys that are cached after this call, in a cache without a window."""
        if self.key_states is not None:
            return torch.arange(self.key_states.shape[1], device=self.index.device)
        if self.state is None:
            return self.index
        if self.state.capacity is not None:
            return torch.arange(self.state.capacity, device=self.index.device)
        return torch.arange(self.state.length + self.index.shape[-1], device=self.index.device)

    def relative_positions(self) -> tuple[Tensor, Tensor]:
        """Indices of the tokens (T,) or (B, T) and of the keys (S,) whose differences are relative positions.

        If a padded prompt is continued, padding may lie between tokens. It does not count: (B, T) and (B, S).
        """
        if self.state is None or self.is_token is None or (self.state.capacity is None and not self.state.length):
            return self.index, self.key_indices()
        keys = self.is_token.cumsum(-1)
        return select_tokens(keys, self.index), keys

    # -- decoding state -----------------------------------------------------------------------------------------------

    def store(self, address: str) -> Store | None:
        """Return the decoding state of the mixer at `address`; None without a state."""
        return None if self.state is None else self.state.stores[address]

    def append_to_cache(self, address: str, new: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Append the PerToken tensors of these tokens to the cache of the mixer at `address`.

        Returns the tensors of all visible tokens and their row indices (S,) or (B, S).
        """
        if self.state is None:
            return new, self.key_indices()
        return self.state.stores[address].extend(new, self.index, self.once, self.state.trailing_pads)

    def from_memory(self, address: str, make: Callable[[Tensor], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Return the cross-attention keys and values of the mixer at `address`, computed by `make` from the memory.

        With a state they are computed once per text.
        """
        store = self.store(address)
        if store is not None and store.tensors:
            return store.tensors["k"], store.tensors["v"]
        if self.memory is None:
            raise ValueError(f"{address} is cross-attention and needs a memory: pass encoder_hidden_states")
        k, v = make(self.memory.states)
        if store is not None:
            store.tensors = {"k": k, "v": v}
        return k, v

    # -- tracing --------------------------------------------------------------------------------------------------

    def tap(self, address: str, name: str, value: Tensor) -> Tensor:
        """Pass the value to the listener of `address.name`, if any; return it, or the listener's replacement."""
        return value if self.taps is None else self.taps(f"{address}.{name}", value)

    def wants(self, address: str, name: str) -> bool:
        """Whether `address.name` is traced."""
        return self.taps is not None and self.taps.wants(f"{address}.{name}")

    def weights(self, address: str) -> Listener | None:
        """Return the listener for the attention weights of the mixer at `address`; None if they are not traced."""
        if self.taps is None or not self.taps.wants(f"{address}.weights"):
            return None
        return functools.partial(self.tap, address, "weights")

    def watch(self, address: str, name: str = "weights") -> Watched | None:
        """Like `weights`, for a kernel that keeps its own result unless the listener changes a value."""
        return Watched(functools.partial(self.tap, address, name)) if self.wants(address, name) else None

    def once(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return `compute()`, called once per forward pass and shared by all layers (rotary tables, masks, biases)."""
        if key not in self.shared:
            self.shared[key] = compute()
        return self.shared[key]

    def once_for(self, places: Tensor, key: str, compute: Callable[[], Any]) -> Any:
        """Like `once`, for keys at row indices `places` (S,) or (B, S), which are fewer in a window."""
        if self.index.shape[-1] > 1 and self.state is not None and self.state.capacity is not None:
            return compute()  # a window plus these tokens may have the same length as the whole cache
        return self.once(f"{key} {places.shape[-1]}", compute)

    def visible(self, mask: Predicate, key: str, keys: Tensor) -> Visible:
        """Return which keys, at row indices `keys` (S,) or (B, S), each token may see; `key` names the mask."""
        found = self.shared.get(key := f"visible {key}")
        if found is None:
            last = self.index.shape[-1] == 1 and self.key_states is None and not (self.state and self.state.capacity)
            rule = None if last and mask.triangular else mask  # the last token of a row sees the whole row
            if rule is not None and self.row_length is not None:
                rule = rule.within(self.row_length)  # a window wider than the row hides nothing
            documents = self.documents
            found = see(rule, self.index, keys, self.is_token, documents, documents, self.extra(Order))
            self.shared[key] = found
        return found

    def visible_memory(self) -> Visible:
        """The visible part of the memory: everything except padding and other documents."""
        memory = self.memory
        assert memory is not None

        def make() -> Visible:
            places = torch.arange(memory.states.shape[1], device=memory.states.device)
            documents = None if memory.documents is None else self.documents
            return see(None, self.index, places, memory.is_token, documents, memory.documents)

        return self.once("visible memory", make)


def select_tokens(row: Tensor, places: Tensor) -> Tensor:
    """(B, S, ...) -> (B, T, ...): select row indices (T,), or (B, T) per row."""
    if places.dim() == 1:
        return row[:, places]
    return row[torch.arange(row.shape[0], device=row.device)[:, None], places]


def zero_padding(x: Tensor, ctx: Context) -> Tensor:
    """(B, T, D) -> (B, T, D): set the vectors of padding to zero."""
    return x if ctx.tokens is None else x.masked_fill(~ctx.tokens[..., None], 0)


def leading_pads(is_token: Tensor) -> Tensor:
    """(B, S) -> (B, 1): the number of pads before the first real token; positions are shifted by it."""
    return (is_token.cumsum(-1) == 0).sum(-1, keepdim=True)
