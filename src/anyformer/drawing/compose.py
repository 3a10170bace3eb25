"""From an outline to a figure: how cards, steps, layers and columns are laid out."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from anyformer.drawing import text
from anyformer.drawing.figure import (
    HUGE, LARGE, PLAIN, PLUS, SMALL, Box, Figure, Line, Mark, Plus, Words, around, beside, framed, plus, split, upwards,
)  # fmt: skip
from anyformer.drawing.outline import Added, Around, Card, Chain, Column, Fan, Layer, Layers, Outline, Side, Step

PAD = 12.0  # between the edge of a card and its text
LINE = 20.0  # from line to line
NARROW, WIDE = 236.0, 400.0  # cards are no narrower, and text is broken rather than that they are wider
GAP = 14.0  # in which an arrow stands
TALL = 1060.0  # a column that is higher is folded
KINDS = 6  # colours of kinds of layers


# -- cards ------------------------------------------------------------------------------------------------------------


def natural(card: Card) -> float:
    """The width at which no phrase has to be broken."""
    phrases = max((text.width(phrase, SMALL) for phrase in card.phrases), default=0)
    rows = max((natural(row) for row in card.rows), default=0)
    width = max(NARROW, min(WIDE, max(title_width(card), phrases) + 2 * PAD), min(WIDE, rows + 2 * PAD))
    while width < WIDE and len(text.wrapped(card.phrases, width - 2 * PAD, SMALL)) > 3:
        width += 20
    return min(width, WIDE)


def title_width(card: Card) -> float:
    slim = card.role in ("norm", "row")
    note = text.width(card.note, SMALL) + 14 if card.note else 0
    return text.width(card.title, SMALL if slim else PLAIN, not slim) + note


def title_lines(card: Card, width: float) -> list[Words]:
    """The title, broken where it must be, and the note at the right of its first line."""
    slim = card.role in ("norm", "row")
    size, bold = (SMALL, False) if slim else (PLAIN, True)
    note = Words(width - PAD, 0, ((card.note, "note"),), SMALL, anchor="end")
    room = (width - 2 * PAD - (note.width + 14 if card.note else 0)) / (text.BOLD if bold else 1)
    kind = "differs" if card.title in card.marked else ""
    lines = [Words(PAD, 0, ((line, kind),), size, bold) for line in text.broken(card.title, room, size)]
    placed = [line.at(0, 22 + i * LINE) for i, line in enumerate(lines)]
    return [*placed, *([note.at(0, 22)] if card.note else [])]


def phrase_lines(card: Card, width: float, y: float) -> list[Words]:
    found = []
    for line in text.wrapped(card.phrases, width - 2 * PAD, SMALL):
        spans: list[tuple[str, str]] = []
        for phrase in line:
            whole = next((each for each in card.phrases if phrase in each and each in card.marked), None)
            spans += [*([(" · ", "")] if spans else []), (phrase, "differs" if whole else "")]
        found.append(Words(PAD, y, tuple(spans), SMALL))
        y += LINE
    return found


def of_card(card: Card, width: float) -> Figure:
    """A box with the title, what is said of it, and the Parts in it."""
    words = title_lines(card, width)
    y = max(line.y for line in words)
    told = phrase_lines(card, width, y + LINE)
    y = (told[-1].y if told else y) + 9
    marks: list[Mark] = []
    if card.fan is not None:
        fan = of_fan(card.fan, width)
        marks += [mark.at(0, y) for mark in fan.marks]
        y += fan.height
    for line in in_lines(card.rows, width - 2 * PAD):
        x, tall = PAD, 0.0
        for row in line:
            wide = width - PAD - x if row is line[-1] else title_width(row) + 2 * PAD
            inner = of_card(row, wide)
            marks += [mark.at(x, y) for mark in inner.marks]
            x, tall = x + wide + 6, max(tall, inner.height)
        y += tall + 6
    height = y + (4 if card.rows or card.fan else 0)
    box = Box(0, 0, width, height, f"{card.role} changed" if card.unlike else card.role, (*words, *told), card.address)
    ports = ((f"{card.port}:{card.address}", (0.0, 34.0)),) if card.port else ()
    return Figure(width, height, width / 2, (box, *marks), ports)


def in_lines(rows: Sequence[Card], room: float) -> list[list[Card]]:
    """Rows, of which those that have a title alone share a line where there is room."""
    lines: list[list[Card]] = []
    for row in (dataclasses.replace(row, role="row", port="") for row in rows):
        beside_it = lines[-1] if lines and not any(each.phrases or each.rows for each in (row, *lines[-1])) else []
        if beside_it and sum(title_width(each) + 2 * PAD + 6 for each in (*beside_it, row)) <= room + 6:
            beside_it.append(row)
        else:
            lines.append([row])
    return lines


def of_fan(fan: Fan, width: float) -> Figure:
    """The router at the bottom, the experts above it, of which the active ones are full, and their sum."""
    shown = [*range(1, fan.experts + 1)] if fan.experts <= 8 else [1, 2, 3, 4, 0, fan.experts]
    labels = ["…" if not i else f"{i}" for i in shown]
    side = max(30.0, *(text.width(label, SMALL) + 10 for label in labels))
    shared = text.width("shared", SMALL) + 14 if fan.shared else 0
    gap = 6.0
    while side > 24 and len(labels) * (side + gap) + shared > width - 2 * PAD and len(labels) > 3:
        labels = [*labels[:-3], "…", labels[-1]]
    total = len(labels) * (side + gap) - gap + (shared + 2 * gap if fan.shared else 0)
    x, axis, top, low = (width - total) / 2, width / 2, 34.0, 62.0
    router = text.width(fan.router, SMALL) + 24
    marks: list[Mark] = [Box(axis - router / 2, 90, router, 28, "router", (Words(axis, 109, ((fan.router, ""),), anchor="middle"),))]
    marks += [Plus(axis, PLUS), Line(((axis, 132), (axis, 118)), "fan on")]
    active = {i for i, label in enumerate(labels) if label != "…"}
    active = {*sorted(active, key=lambda i: (i * 5 + 1) % len(labels))[: fan.active]}
    for i, label in enumerate([*labels, *(["shared"] if fan.shared else [])]):
        last = i == len(labels)
        wide = shared if last else side
        x += gap if last else 0
        middle, on = x + wide / 2, last or i in active
        if label == "…":
            marks.append(Words(middle, 53, (("…", ""),), anchor="middle"))
        else:
            kind = "expert on" if on else "expert"
            marks.append(Box(x, top, wide, 28, kind, (Words(middle, 53, ((label, ""),), anchor="middle"),), "", 5))
            lines = "fan on" if on else "fan"
            start = (axis, 126.0) if last else (axis, 90.0)
            route = ((axis + router / 2 + 8, 126.0), (middle, 126.0)) if last else ()
            marks.insert(0, Line(((start), *route, (middle, low)), lines))
            if on:
                marks.insert(0, Line(((middle, top), (middle, PLUS), (axis, PLUS)) if abs(middle - axis) > 1
                                     else ((middle, top), (axis, PLUS)), lines))  # fmt: skip
        x += wide + gap
    return Figure(width, 130, axis, tuple(marks))


# -- layers -----------------------------------------------------------------------------------------------------------


def of_step(step: Step, width: float) -> Figure:
    make = functools.partial(of_card, width=width)
    before, after = [make(card) for card in step.before], [make(card) for card in step.after]
    early, late = (before, []) if step.normed_skip else ([], before)
    inner = upwards([*late, make(step.op), *after], gap=GAP)
    return upwards([*early, around(inner, step.join), *map(make, step.out)], gap=GAP)


def of_side(side: Side, width: float) -> Figure:
    make = functools.partial(of_card, width=width)
    branches = [upwards([*map(make, step.before), make(step.op), *map(make, step.after)], gap=GAP) for step in side.steps]
    joins = ", ".join(dict.fromkeys(step.join for step in side.steps if step.join))
    return around(split(branches), joins)


def of_layer(layer: Layer, width: float) -> Figure:
    steps = [of_side(step, width) if isinstance(step, Side) else of_step(step, width) for step in layer.steps]
    return upwards(steps, gap=GAP) if steps else Figure(width, 20, width / 2, (Line(((width / 2, 20), (width / 2, 0))),))


def card_width(layer: Layer) -> float:
    steps = [step for each in layer.steps for step in (each.steps if isinstance(each, Side) else (each,))]
    cards = [card for step in steps for card in (*step.before, step.op, *step.after, *step.out)]
    return max((natural(card) for card in cards), default=NARROW)


def of_layers(layers: Layers, outward: str = "left", width: float = 0) -> Figure:
    """A stack in its frame: one layer, or the kinds of layers side by side with a strip that says their order; and how
    many there are, at the side that is `outward`."""
    if not layers.kinds:
        inner = Figure(NARROW, 20, NARROW / 2, (Line(((NARROW / 2, 20), (NARROW / 2, 0))),))
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
    """A kind of layer under its name and colour, at the left of the stream, and which layers are of it, at the right."""
    inner = framed(of_layer(layer, width), "panel", 14)
    title = Words(24, 16, ((layer.name, ""),), PLAIN, True)
    notes = [Words(0, 16, ((layer.places, "note"),)), *([Words(0, 35, ((f"{layer.note} each", "note"),))] if layer.note else [])]
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
    line = Line(((card.width, top + 34), (card.width + 13, top + 34), (card.width + 13, y), (x + room, y)), "bias", True)
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
    figure = Figure(raised.width + 60 + right.width, height, raised.axis, (*raised.marks, *aside), (*raised.ports, *ports))
    return figure.having(*(line for _, layers in details[:1] for line in zoom(figure, layers.address)))


def zoom(figure: Figure, address: str) -> list[Line]:
    """Thin lines from a folded stack to its layers."""
    small, large = (
        next(mark for mark in figure.marks if isinstance(mark, Box) and mark.tip == address and mark.kind.startswith(kind))
        for kind in ("stack", "frame")
    )
    return [Line(((small.x + small.width, a), (large.x, b)), "zoom") for a, b in
            ((small.y + 4, large.y + 12), (small.y + small.height - 4, large.y + large.height - 12))]  # fmt: skip


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
        card = Card(item.address, "stack", f"× {item.times} {count}", tuple(kind.name for kind in item.kinds if kind.name))
        return Chain((card,), ((f"the {count}", item),))

    return Column(tuple(map(fold, column.items)))


def leaving(figure: Figure, label: str, arrow: bool) -> Figure:
    """With an arrow at the top, and what leaves there."""
    taller = figure.padded(top=34)
    words = Words(taller.axis + 10, 18, ((label, "shape"),))
    taller = dataclasses.replace(taller, width=max(taller.width, words.bounds[2]))
    return taller.having(Line(((taller.axis, 34), (taller.axis, 4)), arrow=arrow), *([words] if label else []))


# -- the whole --------------------------------------------------------------------------------------------------------


def of_outline(outline: Outline) -> Figure:
    """Title, columns, and the lines between them."""
    several = len(outline.columns) > 1
    last = len(outline.columns) - 1
    columns = [of_column(column, "right" if i else "left", i == last) for i, column in enumerate(outline.columns)]
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
        before = [port for port in ports if port[0] < x]  # past the kinds of layers that stand before, behind their cards
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
