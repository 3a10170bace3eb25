"""A model on the meta device for counting. Equal layers are one module."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from torch import nn

from anyformer.specs.part import Part, Site


@dataclasses.dataclass(frozen=True)
class Survey(Site):
    """A site that notices if a layer reads its number. If not, all layers built from the same block are equal."""

    fields_read: set[str] = dataclasses.field(default_factory=set)  # "layer" or "depth", if read during construction
    built: dict[tuple[int, int], tuple[Part, nn.Module]] = dataclasses.field(default_factory=dict)

    def __getattribute__(self, name: str) -> Any:
        if name in ("layer", "depth"):
            object.__getattribute__(self, "fields_read").add(name)
        return object.__getattribute__(self, name)

    def child(self, name: str, **changes: Any) -> Site:
        before = set(self.fields_read)
        child = super().child(name, **changes)  # copying a site reads both, which does not count
        self.fields_read.intersection_update(before)
        return child

    def layer_of(self, block: Part) -> nn.Module:
        key = id(block), self.width
        if key in self.built:
            return Like(self.built[key][1])
        self.fields_read.clear()
        module = super().layer_of(block)
        if not self.fields_read:
            self.built[key] = block, module  # keeping the block alive keeps its id unique
        return module


class Like(nn.Module):
    """A placeholder for a layer that is equal to `module`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.__dict__["module"] = module  # not a child

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["module"], name)

    def children(self) -> Iterator[nn.Module]:
        return self.__dict__["module"].children()


def original(layer: nn.Module) -> nn.Module:
    """Return the layer, or the layer that a placeholder is equal to."""
    return layer.__dict__["module"] if isinstance(layer, Like) else layer


def walk_modules(module: nn.Module, address: str = "", copy: str = "") -> Iterator[tuple[str, nn.Module, str]]:
    """Yield (address, module, address of the placeholder that contains it or "") of all modules."""
    if isinstance(module, Like):
        module, copy = original(module), address
    yield address, module, copy
    for name, child in module._modules.items():
        if child is not None:
            yield from walk_modules(child, f"{address}.{name}" if address else name, copy)
