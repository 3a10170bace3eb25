"""The pictures of `anyformer look --picture NAME`. Other packages add them (`specs/extensions.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from anyformer.specs.extensions import MISSING, tables


class Picture(NamedTuple):
    """A picture: a description, and a function that draws it, without arguments or from a Scene."""

    about: str
    draw: Callable[..., Any]
    needs: str = ""  # "text", "image" or "sound" if it needs a model that reads this input; otherwise ""
    bare: bool = False  # needs only a description: no weights are read, and the input is optional


def pictures() -> dict[str, Picture]:
    """Return the pictures by name."""
    if not (found := tables("pictures")):
        raise ValueError(f"no pictures: {MISSING}")
    return found
