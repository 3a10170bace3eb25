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
    note: str = ""  # right of the title: number of parameters, or a shape
    rows: tuple[Card, ...] = ()  # cards of the Parts in this Part
    fan: Fan | None = None
    port: str = ""  # an input from the side: "memory", "bias"
    kind: str = ""  # class name of the Part
    differing: frozenset[str] = frozenset()  # phrases (or the title) that are not in the card it is compared with
    differs: bool = False  # True if it differs from that card in more than numbers

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.title, *self.phrases)


@dataclasses.dataclass(frozen=True)
class ResidualStep:
    """One residual step with its norms."""

    before: tuple[Card, ...]
    op: Card
    after: tuple[Card, ...]  # on the branch, after the op
    out: tuple[Card, ...]  # after the sum
    join: str = ""  # describes the residual; empty for a plain sum
    normed_skip: bool = False  # the skip connection starts after the norm


@dataclasses.dataclass(frozen=True)
class ParallelSteps:
    """Steps side by side, with the same input; their outputs are summed."""

    steps: tuple[ResidualStep, ...]


@dataclasses.dataclass(frozen=True)
class Layer:
    """A kind of layer."""

    name: str
    steps: tuple[ResidualStep | ParallelSteps, ...]
    indices: str  # the layers of this kind, for example "layers 0–2, 7"
    note: str


@dataclasses.dataclass(frozen=True)
class Layers:
    """A stack: the kinds of its layers, and the kind of every layer."""

    address: str
    kinds: tuple[Layer, ...]
    pattern: tuple[int, ...]  # index into `kinds` for each layer
    times: int
    notes: tuple[str, ...] = ()
    shared: Card | None = None  # a Part that all layers use


@dataclasses.dataclass(frozen=True)
class AddedCard:
    """A card at the side whose output is added to the stream."""

    card: Card


@dataclasses.dataclass(frozen=True)
class SkipGroup:
    """Items with a skip connection around them."""

    items: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Chain:
    """Consecutive stacks, each folded into one card. Stacks that differ only in numbers are drawn in full once."""

    items: tuple[Any, ...]
    details: tuple[tuple[str, Layers], ...]  # (title, layers) of the stacks drawn in full


@dataclasses.dataclass(frozen=True)
class StreamColumn:
    """One column, from an input upwards: cards, stacks, and strings with the shape of the stream between them."""

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
    """Yield all nodes of type `kind` in an outline or in a part of one."""
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
    """Map the address of each card to its address within the layer, with the step's index instead of its name."""
    positions = {}
    for layer in every_node(Layer, node):
        for i, step in enumerate(layer.steps):
            for card in cards_in(step):
                _, _, rest = card.address.rpartition(".layers.")  # 3.attention.op
                positions[card.address] = f"{i}.{rest.split('.', 2)[2]}"
    return positions


def map_cards(node: Any, change: Callable[[Card], Card]) -> Any:
    """Return a copy of `node` with `change` applied to every card."""
    if isinstance(node, tuple):
        return tuple(map_cards(item, change) for item in node)
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        fields = {field.name: map_cards(getattr(node, field.name), change) for field in dataclasses.fields(node)}
        node = dataclasses.replace(node, **fields)
    return change(node) if isinstance(node, Card) else node


def mark_differences(node: Any, others: Any, key: Callable[[Card], str]) -> Any:
    """Return a copy of `node` with texts marked if they are in no card of `others` with the same key."""
    known: dict[str, set[str]] = {}
    kinds: dict[str, set[str]] = {}
    for card in cards_in(others):
        known.setdefault(key(card), set()).update(card.texts)
        kinds.setdefault(key(card), set()).add(card.kind)

    def mark(card: Card) -> Card:
        texts = known.get(key(card), set())
        new_kind = card.kind not in kinds.get(key(card), ())  # a different kind of Part: mark only its title
        new = {card.title} if new_kind else {text for text in card.texts if text not in texts}
        plain = {NUMBER.sub("#", text) for text in texts}
        differs = any(NUMBER.sub("#", text) not in plain for text in new)
        return dataclasses.replace(card, differing=frozenset(new), differs=new_kind or differs)

    return map_cards(node, mark)


NUMBER = re.compile(r"[\d.,]*\d[BKMT]?")
