"""Immutable, hashable replacements of lists and dicts, for use in descriptions."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any

LEAVES: frozenset[type] = frozenset((str, int, float, bool, type(None)))  # types that contain no other values


class Table(Mapping):
    """An immutable, hashable mapping, for use in descriptions."""

    def __init__(self, items: Mapping | Iterable = ()):
        given = dict(items)
        flat = only_leaves(given.values()) and {*map(type, given)} <= {str}  # fast path, for a million labels
        self._items = given if flat else {str(key): freeze(value) for key, value in given.items()}

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def keys(self) -> KeysView[str]:
        return self._items.keys()

    def values(self) -> ValuesView[Any]:
        return self._items.values()

    def items(self) -> ItemsView[str, Any]:
        return self._items.items()

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and list(self._items.items()) == list(other._items.items())

    def __repr__(self) -> str:
        return f"Table({self._items!r})"


def only_leaves(values: Iterable[Any], leaves: frozenset[type] = LEAVES) -> bool:
    """Whether the types of all values are in `leaves`. Much faster than a loop over the values."""
    return leaves.issuperset(map(type, values))


def is_flat(value: Any) -> bool:
    """Whether a value is a leaf, or a Table or tuple of leaves, so that it contains no Part."""
    if isinstance(value, (Table, tuple)):
        return only_leaves(value.values() if isinstance(value, Table) else value)
    return type(value) in LEAVES


def freeze(value: Any) -> Any:
    """Convert lists to tuples and dicts to Tables, recursively."""
    if isinstance(value, dict):
        return Table(value)
    if isinstance(value, (list, tuple)):
        return tuple(value) if only_leaves(value) else tuple(freeze(item) for item in value)
    return value


def thaw(value: Any) -> Any:
    """Invert `freeze`, for JSON."""
    if isinstance(value, Table):
        return dict(value.items()) if is_flat(value) else {key: thaw(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return list(value) if is_flat(value) else [thaw(item) for item in value]
    return value
