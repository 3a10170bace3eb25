"""The parts every architecture is put together from: one kind of thing per file, and every kind by its name.

>>> import anyformer as af
>>> af.parts.GatedMLP(width=256)
GatedMLP(width=256)
"""

from __future__ import annotations

from anyformer.specs.part import Part, nearest_kind
from anyformer.specs.slots import kinds, register_package

register_package(__name__)


def __getattr__(name: str) -> type[Part]:
    if not name[:1].isupper():  # what Python asks of a package, and the names of its files
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = kinds()
    if name not in found:
        raise AttributeError(f"no Part is called {name!r}; {nearest_kind(name)}")
    return found[name]


def __dir__() -> list[str]:
    return sorted(kinds())
