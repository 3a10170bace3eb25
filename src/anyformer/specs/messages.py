"""Format values and suggest names for one-line error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

MAX_COMPARED = 10_000  # number of valid names that a misspelled name is compared with


def quote(value: Any, limit: int = 200) -> str:
    """Return the repr of a value for an error message, cut to `limit` characters.

    >>> quote("x" * 100_000, limit=10)
    "'xxxxxxxxx... (100,002 characters)"
    """
    try:
        return shorten(repr(value), limit)
    except ValueError:  # an int of more than 4,300 digits
        return f"a very large {type(value).__name__}"


def shorten(text: str, limit: int = 200) -> str:
    """Cut a text to `limit` characters and append its length."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text):,} characters)"


def amount(count: int, noun: str) -> str:
    """Return a count with its noun, which gets an s unless the count is 1.

    >>> amount(1, "word"), amount(2, "word"), amount(12_000, "token"), amount(0, "layer")
    ('1 word', '2 words', '12,000 tokens', '0 layers')
    """
    return f"{f'{count:,}' if count >= 10_000 else count} {noun}{'' if count == 1 else 's'}"


def plain(name: str) -> str:
    """Normalise the spelling of a name: RMSNorm, RmsNorm and rms_norm become the same."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the closest valid name, or all valid names if none is close."""
    known = sorted(map(str, known))
    name = str(name)[:100]
    plainly, wanted = {plain(each): each for each in reversed(known[:MAX_COMPARED])}, plain(name)
    longer = sorted((each for each in plainly if len(wanted) > 2 and each.startswith(wanted)), key=len)
    shorter = sorted((each for each in plainly if len(each) > 3 and wanted.startswith(each)), key=len, reverse=True)
    almost = difflib.get_close_matches(wanted, plainly, n=1, cutoff=0.6)  # lower would match "qwen2" and "swinv2"
    slips = difflib.get_close_matches(wanted, almost, n=1, cutoff=0.8)
    close = longer or slips or shorter or almost or [each for each in plainly if len(wanted) > 2 and wanted in each]
    if close:
        return f"did you mean {quote(plainly[close[0]])}?"
    more = f" and {len(known) - 40} more" if len(known) > 40 else ""
    shown = ", ".join(shorten(each, 100) for each in known[:40])
    return f"valid: {shown}{more}" if known else "no name is valid here"
