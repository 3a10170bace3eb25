"""From an outline to a figure: how cards, steps, layers and columns are laid out."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from anyformer.drawing.cards import NARROW, PAD, natural, of_card, title_width
from anyformer.drawing.figure import (
    HUGE,
    LARGE,
    PLAIN,
    PLUS,
    Box,
    Figure,
    Line,
    Mark,
    Words,
    around,
    beside,
    framed,
    plus,
    split,
    upwards,
)
from anyformer.drawing.outline import Added, Around, Card, Chain, Column, Layer, Layers, Outline, Side, Step

GAP = 14.0  # in which an arrow stands
TALL = 1060.0  # a column that is higher is folded
KINDS = 6  # colours of kinds of layers


# -- layers -----------------------------------------------------------------------------------------------------------


def of_step(step: Step, width: float) -> Figure:
    make = functools.partial(of_card, width=width)
    before, after = [make(card) for card in step.before], [make(card) for card in step.after]
    early, late = (before, []) if step.normed_skip else ([], before)
    inner = upwards([*late, make(step.op), *after], GAP)
    return upwards([*early, around(inner, step.join), *map(make, step.out)], GAP)


def of_side(side: Side, width: float) -> Figure:
    make = functools.partial(of_card, width=width)
    branches = [[*map(make, step.before), make(step.op), *map(make, step.after)] for step in side.steps]
    joins = ", ".join(dict.fromkeys(step.join for step in side.steps if step.join))
    return around(split([upwards(branch, GAP) for branch in branches]), joins)


def of_layer(layer: Layer, width: float) -> Figure:
    steps = [of_side(step, width) if isinstance(step, Side) else of_step(step, width) for step in layer.steps]
    return upwards(steps, GAP) if steps else empty(width)


def empty(width: float) -> Figure:
    """Nothing but the stream."""
    return Figure(width, 20, width / 2, (Line(((width / 2, 20), (width / 2, 0))),))


def card_width(layer: Layer) -> float:
    steps = [step for each in layer.steps for step in (each.steps if isinstance(each, Side) else (each,))]
    cards = [card for step in steps for card in (*step.before, step.op, *step.after, *step.out)]
    return max((natural(card) for card in cards), default=NARROW)


def of_layers(layers: Layers, outward: str = "left", width: float = 0) -> Figure:
    """A stack in its frame: one layer, or the kinds of layers side by side with a strip that says their order; and how
    many there are, at the side that is `outward`."""
    if not layers.kinds:
        inner = empty(NARROW)
    elif len(layers.kinds) == 1:
        inner = of_layer(layers.kinds[0], max(width, card_width(layers.kinds[0])))
    else:
        wide = max(map(card_width, layers.kinds))
        panels = [of_kind(layer, i, wide) for i, layer in enumerate(layers.kinds)]
        inner = strip(layers.pattern, split(panels, "either", 20, False), outward)
    if layers.shared is not None:
        inner = sharing(inner, layers.shared)
    frame = framed(inner, "frame", 16, layers.address)
    return counted(frame, layers, outward)


def of_kind(layer: Layer, number: int, width: float) -> Figure:
    """A kind of layer under its name and colour, left of the stream, and which layers are of it, right of it."""
    inner = framed(of_layer(layer, width), "panel", 14)
    title = Words(24, 16, ((layer.name, ""),), PLAIN, True)
    told = [layer.places, f"{layer.note} each"] if layer.note else [layer.places]
    notes = [Words(0, 16 + 19 * i, ((line, "note"),)) for i, line in enumerate(told)]
    left = max(0.0, title.bounds[2] + 10 - inner.axis)
    right = max(0.0, inner.axis + 10 + max(line.width for line in notes) - inner.width)
    inner = inner.padded(left, 44, right, 0)
    dot = Box(2, 3, 15, 15, f"kind{number % KINDS}", radius=4)
    wire = Line(((inner.axis, 44), (inner.axis, 0)), "either")
    return inner.having(dot, title, wire, *(line.at(inner.axis + 10, 0) for line in notes))


def strip(pattern: Sequence[int], inner: Figure, outward: str) -> Figure:
    """A cell a layer, the first at the bottom, in the colour of its kind."""
    figure = inner.padded(left=34) if outward == "left" else inner.padded(right=34)
    x = 0.0 if outward == "left" else figure.width - 18
    high = min(16.0, (figure.height - 24) / max(len(pattern), 1))
    gap = 2.0 if high > 6 else 0.6
    bottom = figure.height - max(0.0, figure.height - 24 - high * len(pattern)) / 2 - 12
    cells = [
        Box(x, bottom - (i + 1) * high, 18, max(high - gap, 0.6), f"kind{kind % KINDS}", radius=min(3.0, high / 4))
        for i, kind in enumerate(pattern)
    ]
    return figure.having(*cells)


def sharing(inner: Figure, shared: Card) -> Figure:
    """What all layers use, at the left of the first that does."""
    card = of_card(shared, max(170.0, natural(shared) if natural(shared) > NARROW else title_width(shared) + 2 * PAD))
    ports = [point for name, point in inner.ports if name.startswith("bias:")]
    room = card.width + 26
    figure = inner.padded(left=room)
    x, y = min(ports) if ports else (0.0, inner.height / 2)
    top = min(max(y - 34, 0), max(0.0, figure.height - card.height))
    marks, _ = card.at(0, top)
    start, turn = (card.width, top + 34), card.width + 13
    line = Line((start, (turn, top + 34), (turn, y), (x + room, y)), "bias", True)
    return figure.having(*marks, *([line] if ports else []))


def counted(frame: Figure, layers: Layers, outward: str) -> Figure:
    times = Words(0, 0, ((f"× {layers.times}", "times"),), LARGE, True)
    notes = [Words(0, 24 + 20 * i, ((note, "note"),)) for i, note in enumerate(layers.notes)]
    room = max(line.width for line in (times, *notes)) + 16
    left = outward == "left"
    figure = frame.padded(left=room) if left else frame.padded(right=room)
    x, y = (room - 14, frame.height / 2) if left else (frame.width + 14, frame.height / 2)
    anchor = "end" if left else "start"
    return figure.having(*(dataclasses.replace(line, x=x, y=line.y + y, anchor=anchor) for line in (times, *notes)))


# -- columns ----------------------------------------------------------------------------------------------------------


def of_items(items: Sequence[Any], width: float, outward: str = "left") -> Figure:
    """Cards, stacks and what flows between them, upwards."""
    return upwards([each if isinstance(each, str) else of_item(each, width, outward) for each in items])


def of_item(item: Any, width: float, outward: str) -> Figure:
    if isinstance(item, Card):
        return of_card(item, width)
    if isinstance(item, Layers):
        return of_layers(item, outward, width)
    if isinstance(item, Added):
        return of_added(item.card)
    if isinstance(item, Around):
        return around(of_items(item.items, width))
    assert isinstance(item, Chain), item
    return of_items(item.items, width)


def of_added(card: Card) -> Figure:
    """A sum on the stream, and at its right what is added."""
    box = of_card(card, max(150.0, title_width(card) + 2 * PAD))
    joint = plus()
    y = box.height / 2
    marks, _ = joint.at(0, y - PLUS)
    beside_it, _ = box.at(joint.width + 26, 0)
    axis = joint.axis
    through = [Line(((axis, box.height), (axis, y + PLUS)), arrow=True), Line(((axis, y - PLUS), (axis, 0)))]
    arrow = Line(((joint.width + 26, y), (axis + PLUS, y)), "skip", True)
    return Figure(joint.width + 26 + box.width, box.height, axis, (*through, *marks, *beside_it, arrow), open=True)


def detailed(column: Figure, chains: Sequence[Chain]) -> Figure:
    """Beside a column in which stacks are folded, the layers that they are made of."""
    details = [pair for chain in chains for pair in chain.details]
    right = beside([titled(of_layers(layers, "right"), title) for title, layers in details], 30)
    height = max(column.height, right.height)
    raised = column.padded(top=(height - column.height) / 2, bottom=(height - column.height) / 2)
    aside, ports = right.at(raised.width + 60, (height - right.height) / 2)
    width = raised.width + 60 + right.width
    figure = Figure(width, height, raised.axis, (*raised.marks, *aside), (*raised.ports, *ports))
    return figure.having(*(line for _, layers in details[:1] for line in zoom(figure, layers.address)))


def zoom(figure: Figure, address: str) -> list[Line]:
    """Thin lines from a folded stack to its layers."""
    boxes = [mark for mark in figure.marks if isinstance(mark, Box) and mark.tip == address]
    small, large = (next(box for box in boxes if box.kind.split()[0] == kind) for kind in ("stack", "frame"))
    return [
        Line(((small.x + small.width, a), (large.x, b)), "zoom")
        for a, b in ((small.y + 4, large.y + 12), (small.y + small.height - 4, large.y + large.height - 12))
    ]


def titled(figure: Figure, title: str) -> Figure:
    words = Words(2, 18, ((title, "note"),), PLAIN)
    return figure.padded(top=28, right=max(0.0, words.bounds[2] - figure.width)).having(words)


def of_column(column: Column, outward: str, arrow: bool = True) -> Figure:
    items = [*column.items]
    cards = [each for each in items if isinstance(each, Card)]
    last = items.pop() if isinstance(items[-1], str) else None
    cards += [card for each in items if isinstance(each, Chain) for card in each.items if isinstance(card, Card)]
    inner = [card_width(each.kinds[0]) for each in items if isinstance(each, Layers) and len(each.kinds) == 1]
    figure = of_items(items, max([*map(natural, cards), *inner], default=NARROW), outward)
    figure = figure if last is None else leaving(figure, last, arrow)
    chains = [each for each in items if isinstance(each, Chain)]
    return detailed(figure, chains) if chains else figure


def folded(column: Column) -> Column:
    """The same column with its stack as one card, and the layers beside it."""

    def fold(item: Any) -> Any:
        if not isinstance(item, Layers):
            return item
        count = item.notes[0]
        kinds = tuple(kind.name for kind in item.kinds if kind.name)
        return Chain((Card(item.address, "stack", f"× {item.times} {count}", kinds),), ((f"the {count}", item),))

    return Column(tuple(map(fold, column.items)))


def leaving(figure: Figure, label: str, arrow: bool) -> Figure:
    """With an arrow at the top, and what leaves there."""
    taller = figure.padded(top=34)
    words = Words(taller.axis + 10, 18, ((label, "shape"),))
    taller = dataclasses.replace(taller, width=max(taller.width, words.bounds[2]))
    return taller.having(Line(((taller.axis, 34), (taller.axis, 4 * arrow)), arrow=arrow), *([words] if label else []))


# -- the whole --------------------------------------------------------------------------------------------------------


def of_outline(outline: Outline) -> Figure:
    """Title, columns, and the lines between them."""
    several = len(outline.columns) > 1
    last = len(outline.columns) - 1
    ends = [i == last and not outline.top for i in range(last + 1)]
    columns = [of_column(each, "right" if i else "left", ends[i]) for i, each in enumerate(outline.columns)]
    if not several and columns[0].height > TALL:
        columns = [of_column(folded(outline.columns[0]), "left")]
    columns = [tied(figure, outline.ties) for figure in columns]
    body = beside(columns, 56, None) if several else columns[0]
    if outline.pair and several:
        body = remembered(body, columns)
    if outline.top:
        body = upwards([split_above(body, columns), of_column(Column(outline.top), "left")])
    title = Words(0, 28, ((outline.title, ""),), HUGE, True)
    about = Words(0, 56, ((outline.about, "note"),), PLAIN)
    wide = max(title.bounds[2], about.bounds[2])
    spare = max(0.0, wide - body.width)
    return body.padded(left=spare / 2, right=spare / 2, top=84).having(title, about)


def split_above(body: Figure, columns: Sequence[Figure]) -> Figure:
    """Towers side by side, whose streams meet above them."""
    figure, x, axes = body.padded(top=20), 0.0, []
    for each in columns:
        axes.append((x + each.axis, body.height - each.height + 20))
        x += each.width + 56
    lines = [Line(((at, top), (at, 8), (figure.axis, 8), (figure.axis, 0))) for at, top in axes]
    return figure.having(*lines)


def remembered(body: Figure, columns: Sequence[Figure]) -> Figure:
    """The line from the top of the first column to where the last looks at it."""
    first = columns[0]
    top = body.height - first.height
    lines: list[Mark] = []
    channel = first.width + 24
    ports = sorted(point for name, point in body.ports if name.startswith("memory:"))
    if not ports:
        return body
    start, up = (first.axis, top + 10), top - 2
    for x, y in ports:
        route = [(channel, up), (channel, y)]
        before = [port for port in ports if port[0] < x]  # kinds of layers that it goes past, behind their cards
        route += [(x - 22, before[-1][1]), (x - 22, y)] if before else []
        route[1] = (channel, before[-1][1]) if before else route[1]
        lines.append(Line((start, (first.axis, up), *route, (x, y)), "memory", True))
    return body.having(*lines)


def tied(figure: Figure, ties: Sequence[tuple[str, str]]) -> Figure:
    """A dashed line between cards of a column that use one table."""
    owners = {name.partition(".")[0]: owner for name, owner in ties}
    owners |= {owner.partition(".")[0]: owner for _, owner in ties}
    boxes = [mark for mark in figure.marks if isinstance(mark, Box) and mark.tip in owners]
    if len(boxes) < 2 or len({owners[box.tip] for box in boxes}) > 1:
        return figure
    low, high = max(boxes, key=lambda box: box.y), min(boxes, key=lambda box: box.y)
    wider = figure.padded(left=22)
    points = ((low.x + 22, low.y + 20), (6.0, low.y + 20), (6.0, high.y + 20), (high.x + 22, high.y + 20))
    return wider.having(Line(points, "tie"))
