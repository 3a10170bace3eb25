"""A cache of weights in the layout of a kernel, for as long as the weights exist."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor was changed in place; 0 for an inference tensor, which does not count its changes."""
    return 0 if tensor.is_inference() else tensor._version


class PackedWeights:
    """Maps the memory address of weights to their packed copy: a custom operation receives tensors, not modules.

    `get` packs weights at the first call, and again if they have changed (`stamp` counts changes that the tensor's
    version does not). A copy is freed with its `owner`, or at the next packing after its weights were freed."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[StorageWeakRef, tuple[int, int], Any]] = {}

    def get(self, weight: Tensor, make: Callable[[], Any], stamp: int = 0, owner: object = None) -> Any:
        entry, version = self.kept.get(weight.data_ptr()), (version_of(weight), stamp)
        if entry is None or entry[0].expired() or entry[1] != version:
            self.kept = {pointer: kept for pointer, kept in self.kept.items() if not kept[0].expired()}
            entry = StorageWeakRef(weight.untyped_storage()), version, make()
            self.kept[weight.data_ptr()] = entry
            if owner is not None:
                weakref.finalize(owner, self.drop, weight.data_ptr()).atexit = False
        return entry[2]

    def drop(self, pointer: int) -> None:
        self.kept.pop(pointer, None)
