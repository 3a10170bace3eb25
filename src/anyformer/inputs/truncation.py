"""How many tokens were cut off because a text was too long: counted where they are cut, reported by whoever asks."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from contextvars import ContextVar


@dataclasses.dataclass
class Truncation:
    """The tokens that were cut off since `counted_truncation` began."""

    tokens: int = 0


_current: ContextVar[Truncation | None] = ContextVar("truncation", default=None)


@contextlib.contextmanager
def counted_truncation() -> Iterator[Truncation]:
    """`with counted_truncation() as cut: ...`, and then `cut.tokens` were lost inside."""
    found = Truncation()
    token = _current.set(found)
    try:
        yield found
    finally:
        _current.reset(token)


def count_truncated(tokens: int) -> None:
    """So many tokens of a text are cut off here."""
    found = _current.get()
    if found is not None:
        found.tokens += max(tokens, 0)
