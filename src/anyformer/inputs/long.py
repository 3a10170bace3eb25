"""Texts of any length, a piece at a time: the ids are those of the whole text, and memory does not grow with it.

A piece is tokenised with some text beyond its end. It is cut where a token ends, before a space if there is one, and
the cut counts only if the text behind it, read alone, gives the very tokens that it gave in place. So nothing is
assumed about the tokenizer: words, prefixes that it puts before a text, and what merges with what are found by trying.
Only a single word longer than a piece may come out otherwise (as several unknown ones, where the whole would be one).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import tokenizers

PIECE = 2**16  # characters that are tokenised at once
AHEAD = 2**10  # of them, those beyond the cut
BEFORE = 64  # characters before the cut that are read again, where the text behind it does not stand alone
LONGEST = 2**22  # characters of a text that is held as one encoding, which takes some 300 bytes for each

Encode = Callable[[str], tokenizers.Encoding]


class LongText:
    """A text that is too long to hold: read anew, in pieces, each time it is looked at."""

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
    """A text in parts of at most PIECE characters, cut anywhere."""
    for part in (text,) if isinstance(text, str) else text:
        for i in range(0, len(part), PIECE):
            yield part[i : i + PIECE]


def split_at_spaces(text: str | LongText) -> Iterator[str]:
    """A text in parts of about PIECE characters, cut before a space that follows a letter: where words are counted,
    those of the parts are those of the whole."""
    waiting = ""
    for part in split_text(text):
        waiting += part
        if len(waiting) > PIECE:
            place = next(_spaces(waiting, len(waiting)), len(waiting))
            yield waiting[:place]
            waiting = waiting[place:]
    if waiting:
        yield waiting


def pieces(encode: Encode, parts: Iterable[str]) -> Iterator[TokenRange]:
    """The tokens of the text that the parts make together."""
    waiting, skip = "", 0
    for part in parts:
        waiting += part
        while len(waiting) > PIECE:
            window = waiting[:PIECE]
            encoding = encode(window)
            stop, place, again = _cut(encode, window, encoding)
            yield TokenRange(encoding, skip, stop)
            waiting, skip = waiting[place:], again
    encoding = encode(waiting)
    yield TokenRange(encoding, skip, len(encoding.ids))


def span(encoding: tokenizers.Encoding, token: int) -> tuple[int, int]:
    """The characters [first, last) that a token stands for."""
    characters = encoding.token_to_chars(token)
    assert characters is not None, "a special token stands for no text"
    return characters


def _cut(encode: Encode, window: str, encoding: tokenizers.Encoding) -> tuple[int, int, int]:
    """(tokens before the cut, the character that the next piece begins with, how many of its tokens are not new)."""
    ids, fallback = encoding.ids, None

    def begins(token: int) -> int:
        return span(encoding, token)[0]

    for place in _places(window):
        first = bisect_left(range(len(ids)), place, key=begins)
        if first and span(encoding, first - 1)[1] > place:
            continue  # inside a token
        rest = ids[first:]
        fallback = fallback or (first, place, 0)
        # behind a prefix that the tokenizer puts there itself, the space has to go
        for start in (place, place + (window[place] == " "), place - BEFORE):
            again = encode(window[start:]).ids
            skip = len(again) - len(rest)
            if again[max(skip, 0) :] == rest and (skip == 0 or (skip > 0 and start < place)):
                return first, start, skip
    return fallback or (len(ids), len(window), 0)


def _places(window: str) -> Iterator[int]:
    """Where to try: before spaces first, then anywhere."""
    limit = len(window) - AHEAD
    yield from islice(_spaces(window, limit), 8)
    yield from range(limit, limit - BEFORE, -1)


def _spaces(text: str, limit: int) -> Iterator[int]:
    """Spaces and line ends that follow neither, the last first."""
    place = limit
    while (place := max(text.rfind(" ", 1, place), text.rfind("\n", 1, place))) > BEFORE:
        if not text[place - 1].isspace():
            yield place
