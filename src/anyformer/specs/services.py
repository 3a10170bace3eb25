"""Functions of higher layers that lower layers offer as methods: `model.generate`, drawings in notebooks, adapters.

The package registers them by name on import; the module of a function is imported at its first use.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES: dict[str, str] = {}  # name of the function -> its module


def register_service(name: str, module: str) -> None:
    _MODULES[name] = module


def service(name: str) -> Any:
    """Return the function registered under this name."""
    return getattr(importlib.import_module(_MODULES[name]), name)
