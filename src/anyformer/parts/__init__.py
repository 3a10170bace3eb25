"""The Parts that every architecture is built from. Every Part class is an attribute of this package.

>>> import anyformer as af
>>> af.parts.GatedMLP(width=256)
GatedMLP(width=256)
"""

from __future__ import annotations

from anyformer.specs.part import Part, nearest_kind
from anyformer.specs.slots import kinds, register_package

register_package(__name__)


def __getattr__(name: str) -> type[Part]:
    if not name[:1].isupper():  # dunder names and submodules
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    known = kinds()
    if name not in known:
        raise AttributeError(f"no Part is called {name!r}; {nearest_kind(name)}")
    return known[name]


def __dir__() -> list[str]:
    return sorted(kinds())
