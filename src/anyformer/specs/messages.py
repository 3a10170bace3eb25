"""What users and files gave, fit for one line of an error message."""

from __future__ import annotations

from typing import Any


def quote(value: Any, limit: int = 200) -> str:
    """A value as an error message shows it: its repr, cut to `limit` characters.

    >>> quote("x" * 100_000, limit=10)
    "'xxxxxxxxx... (100,002 characters)"
    """
    try:
        return shorten(repr(value), limit)
    except ValueError:  # a whole number of more than 4,300 digits
        return f"a very large {type(value).__name__}"


def shorten(text: str, limit: int = 200) -> str:
    """A text cut to `limit` characters, and then how many it has."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text):,} characters)"
