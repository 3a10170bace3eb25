"""`--set PATH=VALUE`, for every verb that takes it."""

from __future__ import annotations

import json
from typing import Any


def setting(text: str) -> tuple[str, Any]:
    """PATH=VALUE, the value as JSON where it is JSON, else as text."""
    path, equals, value = text.partition("=")
    if not path or not equals:
        raise ValueError(f"--set takes PATH=VALUE, got {text!r}")
    try:
        return path, json.loads(value)
    except ValueError:
        return path, value
    except RecursionError:
        raise ValueError(f"--set {path}: JSON nested too deeply") from None
