"""What users and files gave, fit for one line of an error message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

COMPARED = 10_000  # names that a misspelled one is compared with


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


def plain(name: str) -> str:
    """Without what people write differently: RMSNorm, RmsNorm and rms_norm are one name."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the closest valid name, or all of them where nothing is close."""
    known = sorted(map(str, known))
    name = str(name)[:100]
    plainly, wanted = {plain(each): each for each in reversed(known[:COMPARED])}, plain(name)
    longer = sorted((each for each in plainly if len(wanted) > 2 and each.startswith(wanted)), key=len)
    shorter = sorted((each for each in plainly if len(each) > 3 and wanted.startswith(each)), key=len, reverse=True)
    almost = difflib.get_close_matches(wanted, plainly, n=1, cutoff=0.6)  # below that, "qwen2" is like "swinv2"
    slips = difflib.get_close_matches(wanted, almost, n=1, cutoff=0.8)
    close = longer or slips or shorter or almost or [each for each in plainly if len(wanted) > 2 and wanted in each]
    if close:
        return f"did you mean {quote(plainly[close[0]])}?"
    more = f" and {len(known) - 40} more" if len(known) > 40 else ""
    shown = ", ".join(shorten(each, 100) for each in known[:40])
    return f"valid: {shown}{more}" if known else "nothing is valid here"
