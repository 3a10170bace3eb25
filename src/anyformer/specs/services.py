"""Functions of higher layers that lower ones offer as methods: `model.generate`, pictures in notebooks, adapters.

The package registers them by name when it is imported; a module is loaded at the first use of its function.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES: dict[str, str] = {}  # name of the function -> its module


def register_service(name: str, module: str) -> None:
    _MODULES[name] = module


def service(name: str) -> Any:
    """The function that was registered under this name."""
    return getattr(importlib.import_module(_MODULES[name]), name)
