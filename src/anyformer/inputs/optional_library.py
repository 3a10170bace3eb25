"""Import of libraries that are extras of the package."""

from __future__ import annotations

import importlib
from typing import Any


def import_optional(module: str, extra: str, purpose: str) -> Any:
    """Import an optional library, or raise an error with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ValueError(f"{purpose} needs {module.split('.')[0]}: pip install 'anyformer[{extra}]'") from None
