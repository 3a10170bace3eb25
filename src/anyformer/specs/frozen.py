"""Lists and dicts that are frozen and hashable, so that they can stand in a description."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any

LEAVES: frozenset[type] = frozenset((str, int, float, bool, type(None)))  # types of values that contain no other value


class Table(Mapping):
    """A mapping that is frozen and hashable, so that it can stand in a description."""

    def __init__(self, items: Mapping | Iterable = ()):
        given = dict(items)
        flat = only_leaves(given.values()) and {*map(type, given)} <= {str}  # nothing to convert: a million labels
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
    """Whether all these values have one of the types `leaves`. It is much faster than a visit to each value."""
    return leaves.issuperset(map(type, values))


def is_flat(value: Any) -> bool:
    """Whether a value is a leaf, or a Table or tuple of leaves: there is no Part in it."""
    if isinstance(value, (Table, tuple)):
        return only_leaves(value.values() if isinstance(value, Table) else value)
    return type(value) in LEAVES


def freeze(value: Any) -> Any:
    """Lists become tuples and dicts become Tables, all the way down."""
    if isinstance(value, dict):
        return Table(value)
    if isinstance(value, (list, tuple)):
        return tuple(value) if only_leaves(value) else tuple(freeze(item) for item in value)
    return value


def thaw(value: Any) -> Any:
    """The inverse of `freeze`, for JSON."""
    if isinstance(value, Table):
        return dict(value.items()) if is_flat(value) else {key: thaw(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return list(value) if is_flat(value) else [thaw(item) for item in value]
    return value
