"""Lists and dicts that are frozen and hashable, so that they can stand in a description."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


class Table(Mapping):
    """A mapping that is frozen and hashable, so that it can stand in a description."""

    def __init__(self, items: Mapping | Iterable = ()):
        self._items = {str(key): freeze(value) for key, value in dict(items).items()}

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and list(self._items.items()) == list(other._items.items())

    def __repr__(self) -> str:
        return f"Table({self._items!r})"


def freeze(value: Any) -> Any:
    """Lists become tuples and dicts become Tables, all the way down."""
    if isinstance(value, dict):
        return Table(value)
    if isinstance(value, (list, tuple)):
        return tuple(freeze(item) for item in value)
    return value


def thaw(value: Any) -> Any:
    """The inverse of `freeze`, for JSON."""
    if isinstance(value, Table):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [thaw(item) for item in value]
    return value
