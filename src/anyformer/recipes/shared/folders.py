"""Which of several forms of a data set a recipe reads."""

from __future__ import annotations

from pathlib import Path


def first_of(*paths: str) -> str:
    """The first path that is there, else the last, which can be fetched."""
    return next((path for path in paths if Path(path).expanduser().exists()), paths[-1])
