"""The contents of a drawing: cards, steps, layers and columns, in the order of the stream.

Nothing here has a position or a color, and nothing depends on the family.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True)
class Fan:
    """The experts of a mixture-of-experts layer."""

    experts: int
    active: int
    router: str
    shared: bool


@dataclasses.dataclass(frozen=True)
class Card:
    """The contents of one Part's box."""

    address: str
    role: str
    title: str
    phrases: tuple[str, ...] = ()
    note: str = ""  # at the right of the title: parameters, or a shape
    rows: tuple[Card, ...] = ()  # Parts in it
    fan: Fan | None = None
    port: str = ""  # an input from the side: "memory", "bias"
    kind: str = ""  # of the Part
    differing: frozenset[str] = frozenset()  # phrases, or the title, that the other picture does not have
    differs: bool = False  # in more than numbers

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.title, *self.phrases)


@dataclasses.dataclass(frozen=True)
class ResidualStep:
    """One residual step with its norms."""

    before: tuple[Card, ...]
    op: Card
    after: tuple[Card, ...]  # on the branch
    out: tuple[Card, ...]  # after the sum
    join: str = ""  # the residual, unless it is a plain sum
    normed_skip: bool = False


@dataclasses.dataclass(frozen=True)
class ParallelSteps:
    """Steps side by side, added to one input."""

    steps: tuple[ResidualStep, ...]


@dataclasses.dataclass(frozen=True)
class Layer:
    """A kind of layer."""

    name: str
    steps: tuple[ResidualStep | ParallelSteps, ...]
    places: str  # which layers are of this kind
    note: str


@dataclasses.dataclass(frozen=True)
class Layers:
    """A stack: the kinds of its layers, and which layer is of which kind."""

    address: str
    kinds: tuple[Layer, ...]
    pattern: tuple[int, ...]  # from the first layer to the last, the number of its kind
    times: int
    notes: tuple[str, ...] = ()
    shared: Card | None = None  # a Part that all layers use


@dataclasses.dataclass(frozen=True)
class AddedCard:
    """A card that is added to the stream from the side."""

    card: Card


@dataclasses.dataclass(frozen=True)
class SkipGroup:
    """Items with a skip connection around them."""

    items: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Chain:
    """Consecutive stacks: folded in a column, and one in full of those that differ in more than numbers."""

    items: tuple[Any, ...]
    details: tuple[tuple[str, Layers], ...]  # (title, layers)


@dataclasses.dataclass(frozen=True)
class StreamColumn:
    """One column from an input upwards: cards, stacks, and strings with the shape between two of them."""

    items: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class ModelOutline:
    title: str
    about: str
    columns: tuple[StreamColumn, ...]
    top: tuple[Any, ...]  # items above all columns, if several columns join
    pair: bool = False  # the last column attends to the output of the first
    ties: tuple[tuple[str, str], ...] = ()


def every_node(kind: type[Item], node: Any) -> Iterator[Item]:
    """All nodes of this kind in an outline or a part of one."""
    if isinstance(node, kind):
        yield node
    if isinstance(node, tuple):
        for item in node:
            yield from every_node(kind, item)
    elif dataclasses.is_dataclass(node) and not isinstance(node, type):
        for field in dataclasses.fields(node):
            yield from every_node(kind, getattr(node, field.name))


def cards_in(node: Any) -> Iterator[Card]:
    return every_node(Card, node)


def step_positions(node: Any) -> dict[str, str]:
    """Address of each card in a layer -> its position there, with the index of the step instead of its name."""
    positions = {}
    for layer in every_node(Layer, node):
        for i, step in enumerate(layer.steps):
            for card in cards_in(step):
                _, _, rest = card.address.rpartition(".layers.")  # 3.attention.op
                positions[card.address] = f"{i}.{rest.split('.', 2)[2]}"
    return positions


def map_cards(node: Any, change: Callable[[Card], Card]) -> Any:
    """Apply a function to every card."""
    if isinstance(node, tuple):
        return tuple(map_cards(item, change) for item in node)
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        fields = {field.name: map_cards(getattr(node, field.name), change) for field in dataclasses.fields(node)}
        node = dataclasses.replace(node, **fields)
    return change(node) if isinstance(node, Card) else node


def mark_differences(node: Any, others: Any, key: Callable[[Card], str]) -> Any:
    """Mark every text that no card of `others` with the same key has."""
    known: dict[str, set[str]] = {}
    kinds: dict[str, set[str]] = {}
    for card in cards_in(others):
        known.setdefault(key(card), set()).update(card.texts)
        kinds.setdefault(key(card), set()).add(card.kind)

    def mark(card: Card) -> Card:
        texts = known.get(key(card), set())
        other = card.kind not in kinds.get(key(card), ())  # another kind of Part: mark only its title
        new = {card.title} if other else {text for text in card.texts if text not in texts}
        plain = {NUMBER.sub("#", text) for text in texts}
        differs = any(NUMBER.sub("#", text) not in plain for text in new)
        return dataclasses.replace(card, differing=frozenset(new), differs=other or differs)

    return map_cards(node, mark)


NUMBER = re.compile(r"[\d.,]*\d[BKMT]?")
