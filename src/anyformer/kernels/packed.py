"""Weights in a kernel's own layout, kept beside the weights for as long as these live."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


class Packed:
    """Where weights lie -> what was made of them. An operation that a compiler calls has tensors in hand and no module,
    so this goes by the memory: made at the first call, and again when the weights changed (`stamp` is for changes that
    their own version does not count). What was made goes with its `owner`, or else when something new is made after
    the weights are gone."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[StorageWeakRef, tuple[int, int], Any]] = {}

    def get(self, weight: Tensor, make: Callable[[], Any], stamp: int = 0, owner: object = None) -> Any:
        found, now = self.kept.get(weight.data_ptr()), (weight._version, stamp)
        if found is None or found[0].expired() or found[1] != now:
            self.kept = {place: kept for place, kept in self.kept.items() if not kept[0].expired()}
            found = StorageWeakRef(weight.untyped_storage()), now, make()
            self.kept[weight.data_ptr()] = found
            if owner is not None:
                weakref.finalize(owner, self.drop, weight.data_ptr()).atexit = False
        return found[2]

    def drop(self, place: int) -> None:
        self.kept.pop(place, None)
