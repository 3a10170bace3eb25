"""A count of the tokens that truncation removes: `count_truncated` adds to it, `counted_truncation` returns it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from contextvars import ContextVar


@dataclasses.dataclass
class Truncation:
    """The number of tokens that were cut off since `counted_truncation` began."""

    tokens: int = 0


_current: ContextVar[Truncation | None] = ContextVar("truncation", default=None)


@contextlib.contextmanager
def counted_truncation() -> Iterator[Truncation]:
    """Count the tokens that are cut off inside the block: `with counted_truncation() as cut: ...; cut.tokens`."""
    truncation = Truncation()
    token = _current.set(truncation)
    try:
        yield truncation
    finally:
        _current.reset(token)


def count_truncated(tokens: int) -> None:
    """Add the number of tokens that the caller cuts off."""
    truncation = _current.get()
    if truncation is not None:
        truncation.tokens += max(int(tokens), 0)  # a NumPy number could not be written as JSON
