"""What there is to draw of a description: cards, steps, layers and columns, in the order of the stream.

Nothing here has a place or a colour, and nothing asks which family a description is of.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True)
class Fan:
    """Experts of which a token goes to a few."""

    experts: int
    active: int
    router: str
    shared: bool


@dataclasses.dataclass(frozen=True)
class Card:
    """One Part: what stands in its box."""

    address: str
    role: str
    title: str
    phrases: tuple[str, ...] = ()
    note: str = ""  # at the right of the title: parameters, or a shape
    rows: tuple[Card, ...] = ()  # Parts in it
    fan: Fan | None = None
    port: str = ""  # what comes in from the side: "memory", "bias"
    kind: str = ""  # of the Part
    marked: frozenset[str] = frozenset()  # the phrases, or the title, that another one does not have
    unlike: bool = False  # what is marked is more than numbers

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.title, *self.phrases)


@dataclasses.dataclass(frozen=True)
class Step:
    """One residual step, with the norms where they stand."""

    before: tuple[Card, ...]
    op: Card
    after: tuple[Card, ...]  # on the branch
    out: tuple[Card, ...]  # after the sum
    join: str = ""  # how the two are added, where it is no plain sum
    normed_skip: bool = False


@dataclasses.dataclass(frozen=True)
class Side:
    """Steps side by side, added to one input."""

    steps: tuple[Step, ...]


@dataclasses.dataclass(frozen=True)
class Layer:
    """A kind of layer."""

    name: str
    steps: tuple[Step | Side, ...]
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
    shared: Card | None = None  # what all layers use


@dataclasses.dataclass(frozen=True)
class Added:
    """Something that joins the stream from the side."""

    card: Card


@dataclasses.dataclass(frozen=True)
class Around:
    """Items that a copy of the stream goes past, to be added behind them."""

    items: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Chain:
    """Stacks one after another: folded in a column, and those that differ in more than numbers once in full."""

    items: tuple[Any, ...]
    details: tuple[tuple[str, Layers], ...]  # what each is a layer of


@dataclasses.dataclass(frozen=True)
class Column:
    """From an input upwards: cards, stacks, and strings that say what flows between two of them."""

    items: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Outline:
    title: str
    about: str
    columns: tuple[Column, ...]
    top: tuple[Any, ...]  # what stands over all columns, where there are several that become one
    pair: bool = False  # the last column looks at what the first made
    ties: tuple[tuple[str, str], ...] = ()


def every(kind: type[Item], node: Any) -> Iterator[Item]:
    """All of this kind in an outline or a piece of one."""
    if isinstance(node, kind):
        yield node
    if isinstance(node, tuple):
        for item in node:
            yield from every(kind, item)
    elif dataclasses.is_dataclass(node) and not isinstance(node, type):
        for field in dataclasses.fields(node):
            yield from every(kind, getattr(node, field.name))


def cards_in(node: Any) -> Iterator[Card]:
    return every(Card, node)


def in_steps(node: Any) -> dict[str, str]:
    """Address of each card in a layer -> its place there, by the number of the step, whatever that is called."""
    found = {}
    for layer in every(Layer, node):
        for i, step in enumerate(layer.steps):
            for card in cards_in(step):
                _, _, rest = card.address.rpartition(".layers.")  # 3.attention.op
                found[card.address] = f"{i}.{rest.split('.', 2)[2]}"
    return found


def changed(node: Any, change: Callable[[Card], Card]) -> Any:
    """The same with every card changed."""
    if isinstance(node, tuple):
        return tuple(changed(item, change) for item in node)
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        fields = {field.name: changed(getattr(node, field.name), change) for field in dataclasses.fields(node)}
        node = dataclasses.replace(node, **fields)
    return change(node) if isinstance(node, Card) else node


def marked(node: Any, others: Any, key: Callable[[Card], str]) -> Any:
    """With every text marked that no card of the others at the same place has."""
    known: dict[str, set[str]] = {}
    kinds: dict[str, set[str]] = {}
    for card in cards_in(others):
        known.setdefault(key(card), set()).update(card.texts)
        kinds.setdefault(key(card), set()).add(card.kind)

    def mark(card: Card) -> Card:
        there = known.get(key(card), set())
        other = card.kind not in kinds.get(key(card), ())  # another Part altogether: its name says it all
        new = {card.title} if other else {text for text in card.texts if text not in there}
        plain = {NUMBER.sub("#", text) for text in there}
        unlike = any(NUMBER.sub("#", text) not in plain for text in new)
        return dataclasses.replace(card, marked=frozenset(new), unlike=other or unlike)

    return changed(node, mark)


NUMBER = re.compile(r"[\d.,]*\d[BKMT]?")
