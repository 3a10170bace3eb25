"""What mixers remember between decoding steps.

A mixer module declares its kind of memory in `state_spec()`; `State` allocates one `Slot` an address from those
declarations and knows no architecture. Growing slots lengthen with the text; static ones are allocated once, so that a
decoding step keeps its shapes and compiles once.

B rows, G key/value heads, S tokens held, L room for tokens, K head width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class KeyValueSpec:
    """Keys and values of every token seen (or of the last `window`)."""

    num_heads: int
    head_width: int
    window: int | None = None

    def shape(self, tokens: int) -> tuple[int, int, int]:
        """Of the keys (and of the values) of one row after so many tokens."""
        return self.num_heads, min(tokens, self.window or tokens), self.head_width


@dataclasses.dataclass(frozen=True)
class LatentSpec:
    """One vector of every token seen, that all heads share: what its keys and values are made from (MLA)."""

    width: int
    float32: bool = False  # whatever the model is

    def shape(self, tokens: int) -> tuple[int, int, int]:
        return 1, tokens, self.width


@dataclasses.dataclass(frozen=True)
class CrossSpec:
    """Keys and values of the memory, computed once."""

    num_heads: int = 0
    head_width: int = 0


@dataclasses.dataclass(frozen=True)
class RecurrentSpec:
    """Tensors of a fixed size, by name -> shape without the batch."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    float32: tuple[str, ...] = ()  # those that are fp32 whatever the model is: sums over a whole text


class Slot:
    """The memory of one mixer; this kind holds what does not change while a text is written (cross-attention)."""

    tensors: dict[str, Tensor]
    can_truncate = True  # whether later tokens can be forgotten again

    def __init__(self) -> None:
        self.tensors = {}

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes a copy of old row rows[i] (beams, forks)."""
        self.tensors = {name: tensor.index_select(0, rows) for name, tensor in self.tensors.items()}

    def truncate(self, dropped: int) -> None:
        """Forgets the last `dropped` tokens."""

    def trim(self, length: int) -> None:
        """Forgets what was before the last `length` places."""

    def fork(self) -> Slot:
        """A copy that goes its own way. Tensors that are replaced, never written into, are shared."""
        copy = object.__new__(type(self))
        copy.__dict__ = {**self.__dict__, "tensors": dict(self.tensors)}
        return copy

    def adopt(self, other: Slot, length: int) -> None:
        """Takes over, in place, what a growing slot of the same mixer holds after `length` tokens."""
        for name, tensor in other.tensors.items():
            if name in self.tensors:
                self.tensors[name].copy_(tensor)
            else:
                self.tensors[name] = tensor.clone()

    def growing(self, length: int) -> Slot:
        """A growing copy of what is held after `length` tokens."""
        copy = Slot()
        copy.tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return copy

    def join(self, others: Sequence[Slot], longest: int) -> None:
        """Takes in the rows of other slots of this kind, behind its own; memories are padded at their end."""
        for name in self.tensors:
            found = [slot.tensors[name] for slot in (self, *others)]
            if found[0].dim() == 4:  # (B, G, M, K)
                found = [F.pad(t, (0, 0, 0, longest - t.shape[2])) for t in found]
            self.tensors[name] = torch.cat(found)


class GrowingKeyValue(Slot):
    """(B, G, S, K) keys and values that lengthen by concatenation; only the last `window` stay where one is set."""

    def __init__(self, window: int | None = None) -> None:
        super().__init__()
        self.window = window
        self.can_truncate = window is None  # what a window dropped is gone

    def extend(self, k: Tensor, v: Tensor, end: int) -> tuple[Tensor, Tensor, Tensor]:
        if "k" in self.tensors:
            k = torch.cat((self.tensors["k"], k), dim=2)
            v = torch.cat((self.tensors["v"], v), dim=2)
        # the queries of this call still see `window` keys back, so trimming comes after
        if self.window is None or k.shape[2] <= self.window:
            self.tensors = {"k": k, "v": v}
        else:  # a copy, so that the rest is freed
            self.tensors = {"k": k[:, :, -self.window :].clone(), "v": v[:, :, -self.window :].clone()}
        return k, v, torch.arange(end - k.shape[2], end, device=k.device)

    def truncate(self, dropped: int) -> None:
        self.tensors = {name: tensor[:, :, : tensor.shape[2] - dropped] for name, tensor in self.tensors.items()}

    def trim(self, length: int) -> None:
        self.tensors = {name: tensor[:, :, -length:] for name, tensor in self.tensors.items()}

    def join(self, others: Sequence[Slot], longest: int) -> None:
        """Shorter rows get pads on their left, so that all of them end at the same place."""
        slots = (self, *others)
        held = max(slot.tensors["k"].shape[2] for slot in slots)
        for name in self.tensors:
            padded = [F.pad(s.tensors[name], (0, 0, held - s.tensors[name].shape[2], 0)) for s in slots]
            self.tensors[name] = torch.cat(padded)


class StaticKeyValue(Slot):
    """(B, G, L, K) keys and values allocated once; a step writes in place."""

    def __init__(self, k: Tensor, v: Tensor) -> None:
        super().__init__()
        self.tensors = {"k": k, "v": v}

    def extend(self, k: Tensor, v: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keys, values = self.tensors["k"], self.tensors["v"]
        keys.index_copy_(2, index, k)
        values.index_copy_(2, index, v)
        return keys, values, torch.arange(keys.shape[2], device=keys.device)

    def reorder(self, rows: Tensor) -> None:
        """In place where the number of rows stays, so that a recorded step finds its tensors where they were."""
        old, same = self.tensors, len(rows) == self.tensors["k"].shape[0]
        super().reorder(rows)
        if same:
            self.tensors = {name: old[name].copy_(tensor) for name, tensor in self.tensors.items()}

    def fork(self) -> Slot:
        copy = super().fork()
        copy.tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return copy

    def places(self, length: int) -> Tensor | slice:
        """Where the tokens that are held after `length` of them stand, the first to the last."""
        return slice(0, length)

    def adopt(self, other: Slot, length: int) -> None:
        for name, tensor in self.tensors.items():
            tensor.zero_()  # what an earlier text left may be anything, and 0 times anything may not be 0
            tensor[:, :, self.places(length)] = other.tensors[name][:, :, -tensor.shape[2] :]

    def growing(self, length: int) -> Slot:
        copy = GrowingKeyValue()
        copy.tensors = {name: tensor[:, :, self.places(length)].clone() for name, tensor in self.tensors.items()}
        return copy


class RingKeyValue(StaticKeyValue):
    """(B, G, L, K) where L is the window: the token at row place p stands at p modulo L."""

    can_truncate = False

    def places(self, length: int) -> Tensor | slice:
        keys = self.tensors["k"]
        return torch.arange(max(length - keys.shape[2], 0), length, device=keys.device) % keys.shape[2]

    def growing(self, length: int) -> Slot:
        copy = super().growing(length)
        assert isinstance(copy, GrowingKeyValue)
        copy.window, copy.can_truncate = self.tensors["k"].shape[2], False
        return copy

    def extend(self, k: Tensor, v: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keys, values = self.tensors["k"], self.tensors["v"]
        L, T = keys.shape[2], k.shape[2]
        # the last place that each slot of the ring held before this call; negative where none: windows do not see it
        before = index[0] - 1
        places = before - (before - torch.arange(L, device=index.device)) % L
        if T == 1:
            at = index % L
            keys.index_copy_(2, at, k)
            values.index_copy_(2, at, v)
            return keys, values, places.index_copy(0, at, index)
        # the first of these tokens still see what the last of them overwrite
        seen = torch.cat((keys, k), dim=2), torch.cat((values, v), dim=2), torch.cat((places, index))
        at, kept = index[-L:] % L, slice(max(T - L, 0), None)
        keys.index_copy_(2, at, k[:, :, kept])
        values.index_copy_(2, at, v[:, :, kept])
        return seen


class Recurrent(Slot):
    """Tensors of a fixed size; the mixer replaces them, in place where the state is static."""

    can_truncate = False

    def __init__(self, tensors: dict[str, Tensor], static: bool) -> None:
        super().__init__()
        self.tensors, self.static = tensors, static

    def replace(self, name: str, tensor: Tensor) -> None:
        if self.static:
            self.tensors[name].copy_(tensor)
        else:
            self.tensors[name] = tensor

    def reorder(self, rows: Tensor) -> None:
        """What holds nothing (the window of a convolution of one tap) has no rows of its own."""
        for name, tensor in self.tensors.items():
            empty = tensor.numel() == 0
            new = tensor.new_zeros(len(rows), *tensor.shape[1:]) if empty else tensor.index_select(0, rows)
            self.tensors[name] = tensor.copy_(new) if self.static and new.shape == tensor.shape else new

    def fork(self) -> Slot:
        copy = super().fork()
        if self.static:
            copy.tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return copy

    def growing(self, length: int) -> Slot:
        return Recurrent({name: tensor.clone() for name, tensor in self.tensors.items()}, static=False)

    def join(self, others: Sequence[Slot], longest: int) -> None:
        for name in self.tensors:
            self.tensors[name] = torch.cat([slot.tensors[name] for slot in (self, *others)])


class State:
    """The memory of a whole model: a slot an address, how many tokens it holds, and which of them are real."""

    def __init__(self, slots: dict[str, Slot], *, length: int | Tensor = 0, capacity: int | None = None) -> None:
        self.slots = slots
        self.length = length  # a tensor when static, so that compiled steps do not specialise on it
        self.capacity = capacity
        self.padding: Tensor | None = None  # (B, length)
        self.memory: Tensor | None = None  # what the encoder said, for encoder-decoders
        self.memory_padding: Tensor | None = None

    @classmethod
    def allocate(
        cls, model: nn.Module, batch_size: int, *, capacity: int | None = None,
        dtype: torch.dtype | None = None, device: torch.device | None = None,
    ) -> State:  # fmt: skip
        """Slots for every mixer of `model` that declares one: growing, or static with room for `capacity` tokens."""
        like = next(model.parameters())
        dtype, device = dtype or like.dtype, device or like.device
        slots: dict[str, Slot] = {}
        for address, spec in declarations(model):
            if isinstance(spec, KeyValueSpec):
                if capacity is None:
                    slots[address] = GrowingKeyValue(spec.window)
                else:
                    ring = spec.window is not None and spec.window < capacity
                    shape = (batch_size, *spec.shape(capacity))
                    empty = [torch.zeros(shape, dtype=dtype, device=device) for _ in "kv"]
                    slots[address] = (RingKeyValue if ring else StaticKeyValue)(*empty)
            elif isinstance(spec, LatentSpec):
                if capacity is None:
                    slots[address] = GrowingKeyValue()
                    continue
                kind = torch.float32 if spec.float32 else dtype
                latent = torch.zeros(batch_size, *spec.shape(capacity), dtype=kind, device=device)
                slots[address] = StaticKeyValue(latent, latent[..., :0])
            elif isinstance(spec, RecurrentSpec):
                kinds = {name: torch.float32 if name in spec.float32 else dtype for name, _ in spec.shapes}
                zeros = {n: torch.zeros(batch_size, *s, dtype=kinds[n], device=device) for n, s in spec.shapes}
                slots[address] = Recurrent(zeros, capacity is not None)
            else:
                slots[address] = spec.slot(batch_size, capacity, device) if hasattr(spec, "slot") else Slot()
        length: int | Tensor = 0 if capacity is None else torch.zeros((), dtype=torch.long, device=device)
        return cls(slots, length=length, capacity=capacity)

    def extend(self, address: str, k: Tensor, v: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """New keys and values in; all that can be seen, with their places in the row (S,), out."""
        slot = self.slots[address]
        if isinstance(slot, StaticKeyValue):
            return slot.extend(k, v, index)
        assert isinstance(slot, GrowingKeyValue) and isinstance(self.length, int)
        return slot.extend(k, v, self.length + k.shape[2])

    def advance(self, num_tokens: int) -> None:
        """The step is done: its tokens are past now. In place where static: a recorded step counts on."""
        self.length += num_tokens

    @property
    def nbytes(self) -> int:
        """Of all that is held."""
        return sum(tensor.nbytes for slot in self.slots.values() for tensor in slot.tensors.values())

    @property
    def can_truncate(self) -> bool:
        """Whether tokens can be forgotten; a window or a recurrence has to be forked and read again instead."""
        return all(slot.can_truncate for slot in self.slots.values())

    def reorder(self, rows: Tensor, same_memory: bool = False) -> None:
        """Row i of everything becomes a copy of old row rows[i]. `same_memory`: both read the same source, so that what
        cross-attention holds can stay."""
        for slot in self.slots.values():
            if not (same_memory and type(slot) is Slot):
                slot.reorder(rows)
        for name in PER_ROW[:1] if same_memory else PER_ROW:
            value = getattr(self, name)
            setattr(self, name, None if value is None else value.index_select(0, rows))

    def truncate(self, length: int) -> None:
        """Forgets all but the first `length` tokens."""
        if not 0 <= length <= int(self.length):
            raise ValueError(f"a state of {int(self.length)} tokens cannot be cut to {length}")
        if length == int(self.length):
            return
        bad = next((address for address, slot in self.slots.items() if not slot.can_truncate), None)
        if bad is not None:
            raise ValueError(f"{bad} has overwritten what was before its last tokens: fork the state and read again")
        dropped = int(self.length) - length
        for slot in self.slots.values():
            slot.truncate(dropped)
        self.length -= dropped
        if self.capacity is None and self.padding is not None:
            self.padding = self.padding[:, :length]

    def trim(self, count: int) -> None:
        """Forgets the first `count` places, which are pads in every row of a growing state."""
        assert isinstance(self.length, int) and self.padding is not None
        self.length -= count
        for slot in self.slots.values():
            slot.trim(self.length)
        self.padding = None if bool(self.padding[:, count:].all()) else self.padding[:, count:]

    def fork(self) -> State:
        """A copy that goes its own way: two texts after one prompt."""
        slots = {address: slot.fork() for address, slot in self.slots.items()}
        length = self.length.clone() if isinstance(self.length, Tensor) else self.length
        copy = State(slots, length=length, capacity=self.capacity)
        copy.padding, copy.memory, copy.memory_padding = self.padding, self.memory, self.memory_padding
        return copy

    def adopt(self, other: State) -> None:
        """A static state takes over, in place, what a growing one of as many rows holds."""
        assert isinstance(self.length, Tensor) and isinstance(other.length, int)
        for address, slot in self.slots.items():
            slot.adopt(other.slots[address], other.length)
        self.length.fill_(other.length)
        for name in PER_ROW[1:]:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is None or theirs is None:
                setattr(self, name, None if theirs is None else theirs.clone())
            else:
                mine.copy_(theirs)

    def growing(self) -> State:
        """A growing copy of a static state, to go on from; which tokens are real is for the caller to say."""
        length = int(self.length)
        copy = State({address: slot.growing(length) for address, slot in self.slots.items()}, length=length)
        copy.memory, copy.memory_padding = self.memory, self.memory_padding
        return copy

    @staticmethod
    def concatenate(states: Sequence[State]) -> State:
        """The rows of several growing states in one, whatever their lengths: shorter ones are padded on the left."""
        if any(state.capacity is not None for state in states):
            raise ValueError("static states have one length for all rows: only growing ones can be concatenated")
        if any(int(state.length) == 0 for state in states):
            raise ValueError("an empty state has no rows to concatenate")
        out = states[0].fork()
        lengths = [int(state.length) for state in states]
        rows = [next(t.shape[0] for slot in state.slots.values() for t in slot.tensors.values()) for state in states]
        memories = [0 if state.memory is None else state.memory.shape[1] for state in states]
        for address, slot in out.slots.items():
            slot.join([state.slots[address] for state in states[1:]], max(memories))
        out.length = max(lengths)
        device = next(t.device for slot in out.slots.values() for t in slot.tensors.values())
        real = [torch.ones(b, n, dtype=torch.bool, device=device) for b, n in zip(rows, lengths, strict=True)]
        given = [mask if state.padding is None else state.padding for state, mask in zip(states, real, strict=True)]
        padding = torch.cat([F.pad(mask, (out.length - mask.shape[1], 0), value=False) for mask in given])
        out.padding = None if bool(padding.all()) else padding
        if out.memory is not None:
            seen, masks = [], []
            for state in states:
                assert state.memory is not None
                mask, end = state.memory_padding, max(memories) - state.memory.shape[1]
                mask = state.memory.new_ones(state.memory.shape[:2]) if mask is None else mask
                seen.append(F.pad(state.memory, (0, 0, 0, end)))
                masks.append(F.pad(mask.bool(), (0, end)))
            out.memory, out.memory_padding = torch.cat(seen), torch.cat(masks)
        return out


PER_ROW = ("padding", "memory", "memory_padding")


def declarations(
    model: nn.Module, modules: Iterable[tuple[str, Any]] | None = None
) -> Iterator[tuple[str, object]]:
    """(address, state spec) of every mixer that remembers something; the encoder of a pair reads once and need not."""
    read_once = ("encoder.", "embedding") if getattr(getattr(model, "spec", None), "pair", False) else ()
    for address, module in model.named_modules() if modules is None else modules:
        if hasattr(module, "state_spec") and not address.startswith(read_once):
            spec = module.state_spec()
            if spec is not None:
                yield address, spec
