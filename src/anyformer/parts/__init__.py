"""All Part classes by name: `af.parts.GatedMLP`, `from anyformer.parts import Attention, Block, Rope`.

This includes the classes of stacks/ and models/. A class is imported when its name is first used. `__init__.pyi` lists
the classes, for type checkers and for this module; `python -m anyformer.cli.listing` writes it. Packages up to `models`
import a class from its own file instead, because an import from here could load a higher package.

>>> import anyformer as af
>>> af.parts.GatedMLP(width=256)
GatedMLP(width=256)
"""

import importlib
import re
from pathlib import Path

from anyformer.specs.part import Part, nearest_kind
from anyformer.specs.slots import kinds, register_package

register_package(__name__)

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_MODULES = {
    name: module
    for module, names in re.findall(r"^from (\S+) import (.+)$", _STUB, re.MULTILINE)
    for name in re.findall(r"(\w+) as \w+", names)
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> type[Part]:
    if name in _MODULES:
        try:
            return globals().setdefault(name, getattr(importlib.import_module(_MODULES[name]), name))
        except (ModuleNotFoundError, AttributeError):  # the class was moved and the stub is outdated
            pass
    if not name[:1].isupper():  # dunder names and submodules
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if (module := _defining_module(name)) is not None:  # a class that is not in the stub yet
        return globals().setdefault(name, getattr(importlib.import_module(module), name))
    for module in {*_MODULES.values()}:  # so that the error can suggest any Part
        importlib.import_module(module)
    if name not in (known := kinds()):
        raise AttributeError(f"no Part is called {name!r}; {nearest_kind(name)}")
    return known[name]  # defined in another package


def _defining_module(name: str) -> str | None:
    """Return the module in parts/, stacks/ or models/ whose source defines this class, or None."""
    root = Path(__file__).parents[1]
    for path in (path for folder in ("parts", "stacks", "models") for path in sorted((root / folder).rglob("*.py"))):
        if re.search(rf"^class {re.escape(name)}\(", path.read_text(encoding="utf-8"), re.MULTILINE):
            return ".".join(("anyformer", *path.relative_to(root).with_suffix("").parts))
    return None


def __dir__() -> list[str]:
    return sorted({*_MODULES, *kinds()})
