"""What mixers remember between decoding steps.

A mixer module declares its kind of memory in `state_spec()`; `State` allocates one `Slot` an address from those
declarations and knows no architecture. Growing slots lengthen with the text; static ones are allocated once, so that a
decoding step keeps its shapes and compiles once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class KeyValueSpec:
    """Keys and values of every token seen (or of the last `window`)."""

    num_heads: int
    head_width: int
    window: int | None = None


@dataclasses.dataclass(frozen=True)
class CrossSpec:
    """Keys and values of the memory, computed once."""


@dataclasses.dataclass(frozen=True)
class RecurrentSpec:
    """Tensors of a fixed size, by name -> shape without the batch."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]


class Slot:
    """The memory of one mixer."""

    tensors: dict[str, Tensor]

    def __init__(self) -> None:
        self.tensors = {}

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes a copy of old row rows[i] (beams, forks)."""
        self.tensors = {name: tensor.index_select(0, rows) for name, tensor in self.tensors.items()}


class GrowingKeyValue(Slot):
    """(B, G, S, K) keys and values that lengthen by concatenation; only the last `window` stay where one is set."""

    def __init__(self, window: int | None = None) -> None:
        super().__init__()
        self.window = window

    def extend(self, k: Tensor, v: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        if "k" in self.tensors:
            k = torch.cat((self.tensors["k"], k), dim=2)
            v = torch.cat((self.tensors["v"], v), dim=2)
        # the queries of this call still see `window` keys back, so trimming comes after
        kept = slice(None) if self.window is None else slice(-self.window, None)
        self.tensors = {"k": k[:, :, kept], "v": v[:, :, kept]}
        end = start
        return k, v, torch.arange(end - k.shape[2], end, device=k.device)


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


class Recurrent(Slot):
    """Tensors of a fixed size; the mixer replaces them."""


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
                    shape = (batch_size, spec.num_heads, capacity, spec.head_width)
                    empty = [torch.zeros(shape, dtype=dtype, device=device) for _ in "kv"]
                    slots[address] = StaticKeyValue(*empty)
            elif isinstance(spec, RecurrentSpec):
                slot = Recurrent()
                slot.tensors = {n: torch.zeros(batch_size, *s, dtype=dtype, device=device) for n, s in spec.shapes}
                slots[address] = slot
            else:
                slots[address] = Slot()
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
        """The step is done: its tokens are past now."""
        self.length = self.length + num_tokens

    def reorder(self, rows: Tensor) -> None:
        """Row i of everything becomes a copy of old row rows[i]."""
        for slot in self.slots.values():
            slot.reorder(rows)
        for name in ("padding", "memory", "memory_padding"):
            value = getattr(self, name)
            setattr(self, name, None if value is None else value.index_select(0, rows))


def declarations(model: nn.Module) -> Iterator[tuple[str, object]]:
    """(address, state spec) of every mixer that remembers something."""
    for address, module in model.named_modules():
        if hasattr(module, "state_spec"):
            spec = module.state_spec()
            if spec is not None:
                yield address, spec
