"""Public names of a package that are imported on first use."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from typing import Any


def lazily(package: str, public: Mapping[str, str]) -> None:
    """`public` names a module for each name. The value is what that module calls so, or the module itself.

    Some functions are called like the modules they live in. Importing such a module would put it in place of the
    function; here the function wins, and `from package.name import ...` still works."""

    class Package(types.ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            if not (name in public and isinstance(value, types.ModuleType)):
                super().__setattr__(name, value)

        def __getattr__(self, name: str) -> Any:
            if name not in public:
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            import importlib

            module = importlib.import_module(public[name])
            value = getattr(module, name, module)
            super().__setattr__(name, value)
            return value

        def __dir__(self) -> list[str]:
            return sorted({*super().__dir__(), *public})

    sys.modules[package].__class__ = Package
