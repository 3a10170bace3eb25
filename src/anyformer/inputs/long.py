"""Tokenization of texts of any length in constant memory. The ids are the same as for the whole text.

A piece is tokenized with some text beyond its end. It is cut where a token ends, before a space if possible. A cut is
valid only if the text after it has the same tokens when it is tokenized separately. Nothing is assumed about the
tokenizer: its words, prefixes and merges are found by trying. Only a single word longer than a piece may have different
ids (several unknown tokens instead of one).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import tokenizers

PIECE = 2**16  # characters that are tokenized at once
AHEAD = 2**10  # characters of a piece that follow the cut
BEFORE = 64  # characters before a cut that the next piece repeats, if its tokens would differ without them
LONGEST = 2**22  # characters of a text in one encoding, which needs about 300 bytes per character

Encode = Callable[[str], tokenizers.Encoding]


class LongText:
    """A text that is too long for memory. Each iteration reads it again, in pieces."""

    def __init__(self, read: Callable[[], Iterator[str]]) -> None:
        self.read = read

    def __iter__(self) -> Iterator[str]:
        return self.read()

    def __str__(self) -> str:
        return "".join(self)


class TokenRange(NamedTuple):
    """Tokens [start, stop) of an encoding."""

    encoding: tokenizers.Encoding
    start: int
    stop: int

    @property
    def ids(self) -> list[int]:
        return self.encoding.ids[self.start : self.stop]


def split_text(text: str | LongText) -> Iterator[str]:
    """Split a text into parts of at most PIECE characters, anywhere."""
    for part in (text,) if isinstance(text, str) else text:
        for i in range(0, len(part), PIECE):
            yield part[i : i + PIECE]


def split_at_spaces(text: str | LongText) -> Iterator[str]:
    """Split a text into parts of about PIECE characters, before a space that follows a letter, so that the parts have
    the same words as the whole text."""
    waiting = ""
    for part in split_text(text):
        waiting += part
        if len(waiting) > PIECE:
            cut = next(_spaces(waiting, len(waiting)), len(waiting))
            yield waiting[:cut]
            waiting = waiting[cut:]
    if waiting:
        yield waiting


def pieces(encode: Encode, parts: Iterable[str]) -> Iterator[TokenRange]:
    """Yield the tokens of the concatenated parts."""
    waiting, skip = "", 0
    for part in parts:
        waiting += part
        while len(waiting) > PIECE:
            window = waiting[:PIECE]
            encoding = encode(window)
            stop, cut, again = _cut(encode, window, encoding)
            yield TokenRange(encoding, skip, stop)
            waiting, skip = waiting[cut:], again
    encoding = encode(waiting)
    yield TokenRange(encoding, skip, len(encoding.ids))


def span(encoding: tokenizers.Encoding, token: int) -> tuple[int, int]:
    """Return the characters [first, last) of a token."""
    characters = encoding.token_to_chars(token)
    assert characters is not None, "a special token has no characters"
    return characters


def _cut(encode: Encode, window: str, encoding: tokenizers.Encoding) -> tuple[int, int, int]:
    """Return (number of tokens before the cut, first character of the next piece, number of its tokens to skip)."""
    ids, fallback = encoding.ids, None

    def begins(token: int) -> int:
        return span(encoding, token)[0]

    for cut in _candidate_cuts(window):
        first = bisect_left(range(len(ids)), cut, key=begins)
        if first and span(encoding, first - 1)[1] > cut:
            continue  # inside a token
        rest = ids[first:]
        fallback = fallback or (first, cut, 0)
        # if the tokenizer adds a prefix space itself, the next piece must not begin with one
        for start in (cut, cut + (window[cut] == " "), cut - BEFORE):
            again = encode(window[start:]).ids
            skip = len(again) - len(rest)
            if again[max(skip, 0) :] == rest and (skip == 0 or (skip > 0 and start < cut)):
                return first, start, skip
    return fallback or (len(ids), len(window), 0)


def _candidate_cuts(window: str) -> Iterator[int]:
    """Yield candidate cuts: before spaces first, then anywhere."""
    limit = len(window) - AHEAD
    yield from islice(_spaces(window, limit), 8)
    yield from range(limit, limit - BEFORE, -1)


def _spaces(text: str, limit: int) -> Iterator[int]:
    """Yield spaces and line ends that follow a non-space character, last first."""
    cut = limit
    while (cut := max(text.rfind(" ", 1, cut), text.rfind("\n", 1, cut))) > BEFORE:
        if not text[cut - 1].isspace():
            yield cut
