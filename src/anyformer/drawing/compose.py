"""Convert an outline to a figure: the layout of cards, steps, layers and columns."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from anyformer.drawing.cards import NARROW, PAD, draw_card, natural_width, title_width
from anyformer.drawing.figure import (
    HUGE,
    LARGE,
    PLAIN,
    PLUS,
    Box,
    Figure,
    FigureText,
    Mark,
    Polyline,
    add_residual,
    draw_frame,
    place_in_row,
    plus,
    split,
    stack_up,
)
from anyformer.drawing.outline import (
    AddedCard,
    Card,
    Chain,
    Layer,
    Layers,
    ModelOutline,
    ParallelSteps,
    ResidualStep,
    SkipGroup,
    StreamColumn,
)

GAP = 14.0  # room for an arrow
TALL = 1060.0  # taller columns are folded
KINDS = 6  # number of colors for kinds of layers


# -- layers -----------------------------------------------------------------------------------------------------------


def draw_step(step: ResidualStep, width: float) -> Figure:
    make = functools.partial(draw_card, width=width)
    before, after = [make(card) for card in step.before], [make(card) for card in step.after]
    early, late = (before, []) if step.normed_skip else ([], before)
    inner = stack_up([*late, make(step.op), *after], GAP)
    return stack_up([*early, add_residual(inner, step.join), *map(make, step.out)], GAP)


def draw_parallel(side: ParallelSteps, width: float) -> Figure:
    make = functools.partial(draw_card, width=width)
    branches = [[*map(make, step.before), make(step.op), *map(make, step.after)] for step in side.steps]
    joins = ", ".join(dict.fromkeys(step.join for step in side.steps if step.join))
    return add_residual(split([stack_up(branch, GAP) for branch in branches]), joins)


def draw_layer(layer: Layer, width: float) -> Figure:
    steps = [
        draw_parallel(step, width) if isinstance(step, ParallelSteps) else draw_step(step, width)
        for step in layer.steps
    ]
    return stack_up(steps, GAP) if steps else empty(width)


def empty(width: float) -> Figure:
    """Draw only the stream."""
    return Figure(width, 20, width / 2, (Polyline(((width / 2, 20), (width / 2, 0))),))


def card_width(layer: Layer) -> float:
    steps = [step for each in layer.steps for step in (each.steps if isinstance(each, ParallelSteps) else (each,))]
    cards = [card for step in steps for card in (*step.before, step.op, *step.after, *step.out)]
    return max((natural_width(card) for card in cards), default=NARROW)


def draw_layers(layers: Layers, outward: str = "left", width: float = 0) -> Figure:
    """Draw a stack in its frame: one layer, or the kinds of layers side by side with a strip that shows their order.
    The number of layers is on the `outward` side."""
    if not layers.kinds:
        inner = empty(NARROW)
    elif len(layers.kinds) == 1:
        inner = draw_layer(layers.kinds[0], max(width, card_width(layers.kinds[0])))
    else:
        widest = max(map(card_width, layers.kinds))
        panels = [draw_kind(layer, i, widest) for i, layer in enumerate(layers.kinds)]
        inner = strip(layers.pattern, split(panels, "either", 20, False), outward)
    if layers.shared is not None:
        inner = add_shared_card(inner, layers.shared)
    frame = draw_frame(inner, "frame", 16, layers.address)
    return add_count(frame, layers, outward)


def draw_kind(layer: Layer, number: int, width: float) -> Figure:
    """Draw a kind of layer, with its name and color left of the stream and its layer indices right of it."""
    inner = draw_frame(draw_layer(layer, width), "panel", 14)
    title = FigureText(24, 16, ((layer.name, ""),), PLAIN, True)
    texts = [layer.indices, f"{layer.note} each"] if layer.note else [layer.indices]
    notes = [FigureText(0, 16 + 19 * i, ((line, "note"),)) for i, line in enumerate(texts)]
    left = max(0.0, title.bounds[2] + 10 - inner.axis)
    right = max(0.0, inner.axis + 10 + max(line.width for line in notes) - inner.width)
    inner = inner.pad(left, 44, right, 0)
    dot = Box(2, 3, 15, 15, f"kind{number % KINDS}", radius=4)
    wire = Polyline(((inner.axis, 44), (inner.axis, 0)), "either")
    return inner.add_marks(dot, title, wire, *(line.shift(inner.axis + 10, 0) for line in notes))


def strip(pattern: Sequence[int], inner: Figure, outward: str) -> Figure:
    """Add a strip with one cell per layer, the first at the bottom, in the color of its kind."""
    figure = inner.pad(left=34) if outward == "left" else inner.pad(right=34)
    x = 0.0 if outward == "left" else figure.width - 18
    high = min(16.0, (figure.height - 24) / max(len(pattern), 1))
    gap = 2.0 if high > 6 else 0.6
    bottom = figure.height - max(0.0, figure.height - 24 - high * len(pattern)) / 2 - 12
    cells = [
        Box(x, bottom - (i + 1) * high, 18, max(high - gap, 0.6), f"kind{kind % KINDS}", radius=min(3.0, high / 4))
        for i, kind in enumerate(pattern)
    ]
    return figure.add_marks(*cells)


def add_shared_card(inner: Figure, shared: Card) -> Figure:
    """Add the card of the Part that all layers share, left of the first card that uses it."""
    width = natural_width(shared)
    card = draw_card(shared, max(170.0, width if width > NARROW else title_width(shared) + 2 * PAD))
    ports = [point for name, point in inner.ports if name.startswith("bias:")]
    room = card.width + 26
    figure = inner.pad(left=room)
    x, y = min(ports) if ports else (0.0, inner.height / 2)
    top = min(max(y - 34, 0), max(0.0, figure.height - card.height))
    marks, _ = card.shift(0, top)
    start, turn = (card.width, top + 34), card.width + 13
    line = Polyline((start, (turn, top + 34), (turn, y), (x + room, y)), "bias", True)
    return figure.add_marks(*marks, *([line] if ports else []))


def add_count(frame: Figure, layers: Layers, outward: str) -> Figure:
    times = FigureText(0, 0, ((f"× {layers.times}", "times"),), LARGE, True)
    notes = [FigureText(0, 24 + 20 * i, ((note, "note"),)) for i, note in enumerate(layers.notes)]
    room = max(line.width for line in (times, *notes)) + 16
    left = outward == "left"
    figure = frame.pad(left=room) if left else frame.pad(right=room)
    x, y = (room - 14, frame.height / 2) if left else (frame.width + 14, frame.height / 2)
    anchor = "end" if left else "start"
    return figure.add_marks(*(dataclasses.replace(line, x=x, y=line.y + y, anchor=anchor) for line in (times, *notes)))


# -- columns ----------------------------------------------------------------------------------------------------------


def draw_items(items: Sequence[Any], width: float, outward: str = "left") -> Figure:
    """Draw cards, stacks and the shapes between them, from bottom to top."""
    return stack_up([each if isinstance(each, str) else draw_item(each, width, outward) for each in items])


def draw_item(item: Any, width: float, outward: str) -> Figure:
    if isinstance(item, Card):
        return draw_card(item, width)
    if isinstance(item, Layers):
        return draw_layers(item, outward, width)
    if isinstance(item, AddedCard):
        return draw_added(item.card)
    if isinstance(item, SkipGroup):
        return add_residual(draw_items(item.items, width))
    assert isinstance(item, Chain), item
    return draw_items(item.items, width)


def draw_added(card: Card) -> Figure:
    """Draw a sum on the stream, with the added card at its right."""
    box = draw_card(card, max(150.0, title_width(card) + 2 * PAD))
    joint = plus()
    y = box.height / 2
    marks, _ = joint.shift(0, y - PLUS)
    added_marks, _ = box.shift(joint.width + 26, 0)
    axis = joint.axis
    through = [Polyline(((axis, box.height), (axis, y + PLUS)), arrow=True), Polyline(((axis, y - PLUS), (axis, 0)))]
    arrow = Polyline(((joint.width + 26, y), (axis + PLUS, y)), "skip", True)
    return Figure(joint.width + 26 + box.width, box.height, axis, (*through, *marks, *added_marks, arrow), open=True)


def add_details(column: Figure, chains: Sequence[Chain]) -> Figure:
    """Add the layers of the folded stacks at the right of a column."""
    details = [pair for chain in chains for pair in chain.details]
    right = place_in_row([add_title(draw_layers(layers, "right"), title) for title, layers in details], 30)
    height = max(column.height, right.height)
    raised = column.pad(top=(height - column.height) / 2, bottom=(height - column.height) / 2)
    marks, ports = right.shift(raised.width + 60, (height - right.height) / 2)
    width = raised.width + 60 + right.width
    figure = Figure(width, height, raised.axis, (*raised.marks, *marks), (*raised.ports, *ports))
    return figure.add_marks(*(line for _, layers in details[:1] for line in zoom(figure, layers.address)))


def zoom(figure: Figure, address: str) -> list[Polyline]:
    """Return thin lines from a folded stack to its layers."""
    boxes = [mark for mark in figure.marks if isinstance(mark, Box) and mark.tip == address]
    small, large = (next(box for box in boxes if box.kind.split()[0] == kind) for kind in ("stack", "frame"))
    return [
        Polyline(((small.x + small.width, a), (large.x, b)), "zoom")
        for a, b in ((small.y + 4, large.y + 12), (small.y + small.height - 4, large.y + large.height - 12))
    ]


def add_title(figure: Figure, title: str) -> Figure:
    words = FigureText(2, 18, ((title, "note"),), PLAIN)
    return figure.pad(top=28, right=max(0.0, words.bounds[2] - figure.width)).add_marks(words)


def draw_column(column: StreamColumn, outward: str, arrow: bool = True) -> Figure:
    items = [*column.items]
    cards = [each for each in items if isinstance(each, Card)]
    last = items.pop() if isinstance(items[-1], str) else None
    cards += [card for each in items if isinstance(each, Chain) for card in each.items if isinstance(card, Card)]
    inner = [card_width(each.kinds[0]) for each in items if isinstance(each, Layers) and len(each.kinds) == 1]
    figure = draw_items(items, max([*map(natural_width, cards), *inner], default=NARROW), outward)
    figure = figure if last is None else add_output(figure, last, arrow)
    chains = [each for each in items if isinstance(each, Chain)]
    return add_details(figure, chains) if chains else figure


def fold_stacks(column: StreamColumn) -> StreamColumn:
    """Return the same column with each stack as one card, and its layers as details."""

    def fold(item: Any) -> Any:
        if not isinstance(item, Layers):
            return item
        count = item.notes[0]
        kinds = tuple(kind.name for kind in item.kinds if kind.name)
        return Chain((Card(item.address, "stack", f"× {item.times} {count}", kinds),), ((f"the {count}", item),))

    return StreamColumn(tuple(map(fold, column.items)))


def add_output(figure: Figure, label: str, arrow: bool) -> Figure:
    """Add an arrow at the top with the label of the output."""
    taller = figure.pad(top=34)
    words = FigureText(taller.axis + 10, 18, ((label, "shape"),))
    taller = dataclasses.replace(taller, width=max(taller.width, words.bounds[2]))
    return taller.add_marks(
        Polyline(((taller.axis, 34), (taller.axis, 4 * arrow)), arrow=arrow), *([words] if label else [])
    )


# -- models -----------------------------------------------------------------------------------------------------------


def draw_outline(outline: ModelOutline) -> Figure:
    """Draw the title, the columns, and the lines between them."""
    several = len(outline.columns) > 1
    last = len(outline.columns) - 1
    ends = [i == last and not outline.top for i in range(last + 1)]
    columns = [draw_column(each, "right" if i else "left", ends[i]) for i, each in enumerate(outline.columns)]
    if not several and columns[0].height > TALL:
        columns = [draw_column(fold_stacks(outline.columns[0]), "left")]
    columns = [add_tie_line(figure, outline.ties) for figure in columns]
    body = place_in_row(columns, 56, None) if several else columns[0]
    if outline.pair and several:
        body = add_memory_lines(body, columns)
    if outline.top:
        body = stack_up([split_above(body, columns), draw_column(StreamColumn(outline.top), "left")])
    title = FigureText(0, 28, ((outline.title, ""),), HUGE, True)
    about = FigureText(0, 56, ((outline.about, "note"),), PLAIN)
    spare = max(0.0, max(title.bounds[2], about.bounds[2]) - body.width)
    return body.pad(left=spare / 2, right=spare / 2, top=84).add_marks(title, about)


def split_above(body: Figure, columns: Sequence[Figure]) -> Figure:
    """Join the streams of several columns above them."""
    figure, x, axes = body.pad(top=20), 0.0, []
    for each in columns:
        axes.append((x + each.axis, body.height - each.height + 20))
        x += each.width + 56
    lines = [Polyline(((at, top), (at, 8), (figure.axis, 8), (figure.axis, 0))) for at, top in axes]
    return figure.add_marks(*lines)


def add_memory_lines(body: Figure, columns: Sequence[Figure]) -> Figure:
    """Add lines from the top of the first column to the cross-attentions of the last."""
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
        before = [port for port in ports if port[0] < x]  # kinds of layers that the line passes behind
        route += [(x - 22, before[-1][1]), (x - 22, y)] if before else []
        route[1] = (channel, before[-1][1]) if before else route[1]
        lines.append(Polyline((start, (first.axis, up), *route, (x, y)), "memory", True))
    return body.add_marks(*lines)


def add_tie_line(figure: Figure, ties: Sequence[tuple[str, str]]) -> Figure:
    """Add a dashed line between cards of a column that share a table."""
    owners = {name.partition(".")[0]: owner for name, owner in ties}
    owners |= {owner.partition(".")[0]: owner for _, owner in ties}
    boxes = [mark for mark in figure.marks if isinstance(mark, Box) and mark.tip in owners]
    if len(boxes) < 2 or len({owners[box.tip] for box in boxes}) > 1:
        return figure
    low, high = max(boxes, key=lambda box: box.y), min(boxes, key=lambda box: box.y)
    wider = figure.pad(left=22)
    points = ((low.x + 22, low.y + 20), (6.0, low.y + 20), (6.0, high.y + 20), (high.x + 22, high.y + 20))
    return wider.add_marks(Polyline(points, "tie"))
