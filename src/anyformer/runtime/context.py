"""What a forward pass hands down to every sublayer: one small typed object instead of `**kwargs`.

B batch, T tokens of this call, S tokens that can be seen (past included), D width.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from anyformer.kernels.attention import Visible
from anyformer.runtime.mask import FULL, Causal, Mask, Order, see
from anyformer.runtime.state import State, Store
from anyformer.runtime.taps import Listener, Taps, Watched

E = TypeVar("E")


@dataclasses.dataclass(frozen=True)
class Memory:
    """What cross-attention looks at."""

    states: Tensor  # (B, M, D)
    padding: Tensor | None = None  # (B, M) True where real; None when all are
    documents: Tensor | None = None  # (B, M) number of the packed document each belongs to


@dataclasses.dataclass(frozen=True)
class TokenIds:
    """The ids of the tokens of this call, where it was given ids."""

    ids: Tensor  # (B, T)


@dataclasses.dataclass(frozen=True)
class StackOutputs:
    """Named outputs of the model that a stack computes beside its hidden states (XLNet's `mems`)."""

    fields: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Context:
    """One forward pass through one stack. What few families hand down beside this are `extras`, one of a class."""

    index: Tensor  # (T,) or (B, T) place of each token in its row, pads and past counted: what masks compare
    positions: Tensor  # (1 or B, T) place of each token in its text, pads not counted: what embeddings and RoPE use
    padding: Tensor | None = None  # (B, S) True where a real token is; None when there is no padding
    documents: Tensor | None = None  # (B, T) number of the packed document each token belongs to
    memory: Memory | None = None
    fine: Tensor | None = None  # (B, S, D) where keys are of a longer sequence: then all but the stream is about it
    state: State | None = None
    bias: Tensor | None = None  # (1, H, T, S) a position bias shared by the layers of a stack (T5)
    kernel: str = "auto"
    taps: Taps | None = None
    extras: tuple[Any, ...] = ()
    shared: dict[str, Any] = dataclasses.field(default_factory=dict)  # see `once`
    losses: dict[str, list[Tensor]] = dataclasses.field(default_factory=dict)  # what routers say, a layer each

    def extra(self, kind: type[E]) -> E | None:
        """The extra of this class, where there is one."""
        for each in self.extras:
            if isinstance(each, kind):
                return each
        return None

    def replace(self, *extras: Any, **changes: Any) -> Context:
        """A copy with other fields, and with these extras in the place of those of their classes."""
        if not extras:
            return dataclasses.replace(self, **changes)
        kinds = tuple(type(each) for each in extras)
        kept = tuple(each for each in self.extras if not isinstance(each, kinds))
        return dataclasses.replace(self, extras=(*kept, *extras), **changes)

    @property
    def tokens(self) -> Tensor | None:
        """(B, T) True where a token of this call is real; None when all are."""
        return None if self.padding is None else self.of_these(self.padding)

    def of_these(self, held: Tensor) -> Tensor:
        """(B, S, ...) of all tokens that a state without windows holds -> (B, T, ...) of those of this call."""
        if self.state is not None and self.state.capacity is not None:
            return at_places(held, self.index)
        return held[:, -self.index.shape[-1] :]

    def places(self) -> Tensor:
        """(S,) row places of all the keys that a state without windows holds after this call."""
        if self.fine is not None:
            return torch.arange(self.fine.shape[1], device=self.index.device)
        if self.state is None:
            return self.index
        if self.state.capacity is not None:
            return torch.arange(self.state.capacity, device=self.index.device)
        return torch.arange(self.state.length + self.index.shape[-1], device=self.index.device)

    def relative_positions(self) -> tuple[Tensor, Tensor]:
        """Places of the tokens (T,) or (B, T) and of the keys (S,) between which distances count. Where a text goes on
        after a padded past, pads may stand between its tokens and do not count: (B, T) and (B, S)."""
        if self.state is None or self.padding is None or (self.state.capacity is None and not self.state.length):
            return self.index, self.places()
        keys = self.padding.cumsum(-1)
        return at_places(keys, self.index), keys

    # -- what is remembered -------------------------------------------------------------------------------------------

    def store(self, address: str) -> Store | None:
        """Where the mixer at `address` keeps what it remembers, if anything is remembered."""
        return None if self.state is None else self.state.stores[address]

    def remember(self, address: str, new: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """What the mixer at `address` declared PerToken, of these tokens, in; the same of all that can be seen, and
        their row places (S,) or (B, S), out."""
        if self.state is None:
            return new, self.places()
        return self.state.stores[address].extend(new, self.index, self.once, self.state.behind)

    def from_memory(self, address: str, make: Callable[[Tensor], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Keys and values that the mixer at `address` makes of the memory (B, M, D): once a text where a state is
        kept."""
        store = self.store(address)
        if store is not None and store.tensors:
            return store.tensors["k"], store.tensors["v"]
        if self.memory is None:
            raise ValueError(f"{address} looks at a memory and none was given (encoder_hidden_states)")
        k, v = make(self.memory.states)
        if store is not None:
            store.tensors = {"k": k, "v": v}
        return k, v

    # -- looking --------------------------------------------------------------------------------------------------

    def tap(self, address: str, name: str, value: Tensor) -> Tensor:
        """Every value that can be looked at or changed goes through here, as `address.name`."""
        return value if self.taps is None else self.taps(f"{address}.{name}", value)

    def wants(self, address: str, name: str) -> bool:
        """Whether anyone listens at `address.name`."""
        return self.taps is not None and self.taps.wants(f"{address}.{name}")

    def weights(self, address: str) -> Listener | None:
        """Where the attention weights of the mixer at `address` go, if anyone asked for them."""
        return functools.partial(self.tap, address, "weights") if self.wants(address, "weights") else None

    def watch(self, address: str, name: str = "weights") -> Watched | None:
        """The same where a result is computed in a faster way already: it is used unless something was changed."""
        return Watched(functools.partial(self.tap, address, name)) if self.wants(address, name) else None

    def once(self, key: str, compute: Callable[[], Any]) -> Any:
        """Work that many layers share (rotary tables, masks, biases) is done by the first one that asks."""
        if key not in self.shared:
            self.shared[key] = compute()
        return self.shared[key]

    def once_for(self, places: Tensor, key: str, compute: Callable[[], Any]) -> Any:
        """The same for keys at row places `places` (S,) or (B, S), of which windows hold fewer."""
        if self.index.shape[-1] > 1 and self.state is not None and self.state.capacity is not None:
            return compute()  # a window and these tokens may be as many as there is room for
        return self.once(f"{key} {places.shape[-1]}", compute)

    def visible(self, mask: Mask, key: str, keys: Tensor) -> Visible:
        """Which of the keys at row places `keys` (S,) or (B, S) each token may see; `key` names the mask and the kind
        of keys."""
        found = self.shared.get(key := f"visible {key}")
        if found is None:
            last = self.index.shape[-1] == 1 and self.fine is None and not (self.state and self.state.capacity)
            if last and isinstance(mask, Causal):
                mask = FULL  # the last token of a row sees all of it
            documents = self.documents
            found = see(mask, self.index, keys, self.padding, documents, documents, self.extra(Order))
            self.shared[key] = found
        return found

    def visible_memory(self) -> Visible:
        """All of the memory but its padding and what belongs to other documents."""
        memory = self.memory
        assert memory is not None

        def make() -> Visible:
            places = torch.arange(memory.states.shape[1], device=memory.states.device)
            documents = None if memory.documents is None else self.documents
            return see(FULL, self.index, places, memory.padding, documents, memory.documents)

        return self.once("visible memory", make)


def at_places(row: Tensor, places: Tensor) -> Tensor:
    """(B, S, ...) -> (B, T, ...): what is at the places (T,), or (B, T) of each row."""
    if places.dim() == 1:
        return row[:, places]
    return row[torch.arange(row.shape[0], device=row.device)[:, None], places]


def leading_pads(padding: Tensor) -> Tensor:
    """(B, S) -> (B, 1): how many pads stand before the first real token, by which positions are shifted."""
    return (padding.cumsum(-1) == 0).sum(-1, keepdim=True)
