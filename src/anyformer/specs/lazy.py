"""Names of a package that are imported at their first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that imports each name from its module; a module has its own
    name.

    Packages hide them from type checkers (`if not TYPE_CHECKING`), which would otherwise accept every name.
    """

    def load(name: str) -> Any:
        if name not in modules:
            from anyformer.specs.messages import nearest

            hint = "" if name.startswith("__") else f"; {nearest(name, modules)}"
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        module = importlib.import_module(modules[name])
        return vars(sys.modules[package]).setdefault(name, getattr(module, name, module))

    return load, lambda: sorted({*vars(sys.modules[package]), *modules})
