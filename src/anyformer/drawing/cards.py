"""Draw cards: the box of one Part, with its phrases and the Parts in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from anyformer.drawing import text_width
from anyformer.drawing.figure import PLAIN, PLUS, SMALL, Box, Figure, FigureText, Mark, Plus, Polyline
from anyformer.drawing.outline import Card, Fan

PAD = 12.0  # between the edge of a card and its text
LINE = 20.0  # between baselines
NARROW, WIDE = 236.0, 400.0  # minimum and maximum width of a card; longer text is wrapped


def natural_width(card: Card) -> float:
    """Return the width at which no phrase has to be wrapped, between NARROW and WIDE."""
    phrases = max((text_width.width(phrase, SMALL) for phrase in card.phrases), default=0)
    rows = max((natural_width(row) for row in card.rows), default=0)
    width = max(NARROW, min(WIDE, max(title_width(card), phrases) + 2 * PAD), min(WIDE, rows + 2 * PAD))
    while width < WIDE and len(text_width.wrap(card.phrases, width - 2 * PAD, SMALL)) > 3:
        width += 20
    return min(width, WIDE)


def title_width(card: Card) -> float:
    slim = card.role in ("norm", "row")
    note = text_width.width(card.note, SMALL) + 14 if card.note else 0
    return text_width.width(card.title, SMALL if slim else PLAIN, not slim) + note


def title_lines(card: Card, width: float) -> list[FigureText]:
    """Return the wrapped title, and the note at the right end of its first line."""
    slim = card.role in ("norm", "row")
    size, bold = (SMALL, False) if slim else (PLAIN, True)
    note = FigureText(width - PAD, 0, ((card.note, "note"),), SMALL, anchor="end")
    room = (width - 2 * PAD - (note.width + 14 if card.note else 0)) / (text_width.BOLD if bold else 1)
    kind = "differs" if card.title in card.differing else ""
    lines = [
        FigureText(PAD, 0, ((line, kind),), size, bold) for line in text_width.break_phrase(card.title, room, size)
    ]
    placed = [line.shift(0, 22 + i * LINE) for i, line in enumerate(lines)]
    return [*placed, *([note.shift(0, 22)] if card.note else [])]


def phrase_lines(card: Card, width: float, y: float) -> list[FigureText]:
    lines = []
    for line in text_width.wrap(card.phrases, width - 2 * PAD, SMALL):
        spans: list[tuple[str, str]] = []
        for phrase in line:
            differing = next((each for each in card.phrases if phrase in each and each in card.differing), None)
            spans += [*([(" · ", "")] if spans else []), (phrase, "differs" if differing else "")]
        lines.append(FigureText(PAD, y, tuple(spans), SMALL))
        y += LINE
    return lines


def draw_card(card: Card, width: float) -> Figure:
    """Draw a box with the title, the phrases, and the Parts in it."""
    words = title_lines(card, width)
    y = max(line.y for line in words)
    phrases = phrase_lines(card, width, y + LINE)
    y = (phrases[-1].y if phrases else y) + 9
    marks: list[Mark] = []
    if card.fan is not None:
        fan = draw_fan(card.fan, width)
        marks += [mark.shift(0, y) for mark in fan.marks]
        y += fan.height
    for line in group_rows(card.rows, width - 2 * PAD):
        x, tall = PAD, 0.0
        for row in line:
            wide = width - PAD - x if row is line[-1] else title_width(row) + 2 * PAD
            inner = draw_card(row, wide)
            marks += [mark.shift(x, y) for mark in inner.marks]
            x, tall = x + wide + 6, max(tall, inner.height)
        y += tall + 6
    height = y + (4 if card.rows or card.fan else 0)
    box = Box(
        0, 0, width, height, f"{card.role} changed" if card.differs else card.role, (*words, *phrases), card.address
    )
    ports = ((f"{card.port}:{card.address}", (0.0, 34.0)),) if card.port else ()
    return Figure(width, height, width / 2, (box, *marks), ports)


def group_rows(rows: Sequence[Card], room: float) -> list[list[Card]]:
    """Group the rows into lines: rows with only a title share a line if there is room."""
    lines: list[list[Card]] = []
    for row in (dataclasses.replace(row, role="row", port="") for row in rows):
        neighbours = lines[-1] if lines and not any(each.phrases or each.rows for each in (row, *lines[-1])) else []
        if neighbours and sum(title_width(each) + 2 * PAD + 6 for each in (*neighbours, row)) <= room + 6:
            neighbours.append(row)
        else:
            lines.append([row])
    return lines


def draw_fan(fan: Fan, width: float) -> Figure:
    """Draw the router at the bottom, the experts above it (the active ones filled), and their sum."""
    axis, router = width / 2, text_width.width(fan.router, SMALL) + 24
    shared = text_width.width("shared", SMALL) + 14 if fan.shared else 0.0
    labels = expert_labels(fan.experts, width - 2 * PAD - (shared + 12 if fan.shared else 0))
    side = expert_side(labels)
    order = sorted((i for i, label in enumerate(labels) if label), key=lambda i: (i * 5 + 1) % len(labels))
    full = (
        fan.active if len(labels) == fan.experts else min(fan.active, 2)
    )  # if most experts are hidden, fill at most two
    active = {*order[:full]}
    boxes: list[Mark] = [Plus(axis, PLUS), inner_box(axis - router / 2, 90, router, "router", fan.router)]
    lines: list[Mark] = [Polyline(((axis, 132), (axis, 118)), "fan on")]
    x = axis - (len(labels) * (side + 6) - 6 + (shared + 12 if fan.shared else 0)) / 2
    for i, label in enumerate(labels):
        middle, kind = x + side / 2, "on" if i in active else ""
        if label:
            boxes.append(inner_box(x, 34, side, f"expert {kind}".strip(), label))
            lines.append(Polyline(((axis, 90), (middle, 62)), f"fan {kind}".strip()))
            lines += [line_to_sum(middle, axis)] if kind else []
        else:
            boxes.append(FigureText(middle, 53, (("…", ""),), anchor="middle"))
        x += side + 6
    if fan.shared:  # the shared expert processes every token
        x += 6
        boxes.append(inner_box(x, 34, shared, "expert on", "shared"))
        lines.append(Polyline(((axis, 126), (x + shared / 2, 126), (x + shared / 2, 62)), "fan on"))
        lines.append(line_to_sum(x + shared / 2, axis))
    return Figure(width, 130, axis, (*lines, *boxes))


def expert_labels(experts: int, room: float) -> list[str]:
    """Return the numbers of the experts, with a gap ("") if they do not all fit."""
    if experts <= 8 and len(all_of := [str(i + 1) for i in range(experts)]) * (expert_side(all_of) + 6) <= room:
        return all_of
    for shown in (4, 3, 2, 1):
        labels = [*(str(i + 1) for i in range(shown)), "", str(experts)]
        if len(labels) * (expert_side(labels) + 6) <= room:
            break
    return labels


def expert_side(labels: Sequence[str]) -> float:
    return max(30.0, *(text_width.width(label, SMALL) + 10 for label in labels))


def inner_box(x: float, y: float, width: float, kind: str, label: str) -> Box:
    words = FigureText(x + width / 2, y + 19, ((label, ""),), anchor="middle")
    return Box(x, y, width, 28, kind, (words,), radius=5)


def line_to_sum(x: float, axis: float) -> Polyline:
    """Return the line from an expert to the sum."""
    return Polyline(((x, 34), (axis, PLUS)) if abs(x - axis) < 1 else ((x, 34), (x, PLUS), (axis, PLUS)), "fan on")
