"""Choice between several versions of a data set."""

from __future__ import annotations

from pathlib import Path


def first_of(*paths: str) -> str:
    """Return the first path that exists, otherwise the last one, which can be fetched."""
    return next((path for path in paths if Path(path).expanduser().exists()), paths[-1])
