"""Figures that are put together: marks at their places, a size, and the stream that runs through from bottom to top.

A `Figure` knows nothing of models. Its stream enters at the bottom and leaves at the top, both at `axis`, and figures
are put on top of each other, beside each other or into frames by functions that return new ones. Pixels, y downwards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from anyformer.drawing import text

ARROW = 9.0  # length of an arrow's head
PLUS = 11.0  # radius of the circle in which streams are added
SMALL, PLAIN, LARGE, HUGE = 15.0, 16.0, 28.0, 30.0  # sizes of letters
Point = tuple[float, float]
Bounds = tuple[float, float, float, float]  # left, top, right, bottom


@dataclasses.dataclass(frozen=True)
class Words:
    """One line of text; y is its baseline. Each span is (text, class)."""

    x: float
    y: float
    spans: tuple[tuple[str, str], ...]
    size: float = SMALL
    bold: bool = False
    anchor: str = "start"

    @property
    def width(self) -> float:
        return text.width("".join(span for span, _ in self.spans), self.size, self.bold)

    @property
    def bounds(self) -> Bounds:
        left = self.x - {"start": 0.0, "middle": self.width / 2, "end": self.width}[self.anchor]
        return left, self.y - 0.8 * self.size, left + self.width, self.y + 0.25 * self.size

    def at(self, dx: float, dy: float) -> Words:
        return dataclasses.replace(self, x=self.x + dx, y=self.y + dy)


@dataclasses.dataclass(frozen=True)
class Box:
    """A rectangle with the text that stands in it; `tip` is shown where the pointer rests."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    words: tuple[Words, ...] = ()
    tip: str = ""
    radius: float = 7.0

    @property
    def bounds(self) -> Bounds:
        return self.x, self.y, self.x + self.width, self.y + self.height

    def at(self, dx: float, dy: float) -> Box:
        words = tuple(each.at(dx, dy) for each in self.words)
        return dataclasses.replace(self, x=self.x + dx, y=self.y + dy, words=words)


@dataclasses.dataclass(frozen=True)
class Line:
    """From point to point, with round corners; an arrow where it ends, if asked for."""

    points: tuple[Point, ...]
    kind: str = "wire"
    arrow: bool = False

    def at(self, dx: float, dy: float) -> Line:
        return dataclasses.replace(self, points=tuple((x + dx, y + dy) for x, y in self.points))


@dataclasses.dataclass(frozen=True)
class Plus:
    """Where streams are added."""

    x: float
    y: float

    def at(self, dx: float, dy: float) -> Plus:
        return Plus(self.x + dx, self.y + dy)


Mark = Words | Box | Line | Plus


@dataclasses.dataclass(frozen=True)
class Figure:
    width: float
    height: float
    axis: float  # x of the stream
    marks: tuple[Mark, ...] = ()
    ports: tuple[tuple[str, Point], ...] = ()  # places that lines from elsewhere lead to, by name
    open: bool = False  # begins with a line: what leads to it ends in no arrow

    def at(self, dx: float, dy: float) -> tuple[tuple[Mark, ...], tuple[tuple[str, Point], ...]]:
        """Its marks and ports at another place."""
        ports = tuple((name, (x + dx, y + dy)) for name, (x, y) in self.ports)
        return tuple(mark.at(dx, dy) for mark in self.marks), ports

    def having(self, *marks: Mark, ports: Sequence[tuple[str, Point]] = ()) -> Figure:
        return dataclasses.replace(self, marks=(*self.marks, *marks), ports=(*self.ports, *ports))

    def padded(self, left: float = 0, top: float = 0, right: float = 0, bottom: float = 0) -> Figure:
        marks, ports = self.at(left, top)
        size = self.width + left + right, self.height + top + bottom
        return Figure(*size, self.axis + left, marks, ports, self.open and not bottom)


def upwards(figures: Sequence[Figure | str], gap: float = 16) -> Figure:
    """One above the other, the first at the bottom, joined by arrows. A string between two is what flows there."""
    left = max(each.axis for each in figures if isinstance(each, Figure))
    right = max(each.width - each.axis for each in figures if isinstance(each, Figure))
    marks: list[Mark] = []
    ports: list[tuple[str, Point]] = []
    y, label, last = 0.0, "", None  # upwards from 0, then moved down
    for each in figures:
        if isinstance(each, str):
            label = each
            continue
        if last is not None:
            space = gap + (14 if label else 0)
            marks.append(Line(((left, y), (left, y - space)), arrow=not each.open))
            if label:
                words = Words(left + 10, y - space / 2 + 5, ((label, "shape"),))
                marks.append(words)
                right = max(right, words.bounds[2] - left)
            y -= space
        moved, there = each.at(left - each.axis, y - each.height)
        marks.extend(moved)
        ports.extend(there)
        y, label, last = y - each.height, "", each
    first = next(each for each in figures if isinstance(each, Figure))
    moved, there = Figure(0, 0, 0, tuple(marks), tuple(ports)).at(0, -y)
    return Figure(left + right, -y, left, moved, there, first.open)


def beside(figures: Sequence[Figure], gap: float, axis: int | None = None) -> Figure:
    """Side by side on one ground; the axis is in the middle, or that of one of them."""
    height, x = max(each.height for each in figures), 0.0
    marks: list[Mark] = []
    ports: list[tuple[str, Point]] = []
    axes: list[float] = []
    for each in figures:
        moved, there = each.at(x, height - each.height)
        marks.extend(moved)
        ports.extend(there)
        axes.append(x + each.axis)
        x += each.width + gap
    width = x - gap
    return Figure(width, height, width / 2 if axis is None else axes[axis], tuple(marks), tuple(ports))


def plus(label: str = "") -> Figure:
    """Two streams become one; the label, at its left, says how where it is no plain sum."""
    words = Words(-PLUS - 6, PLUS + 5, ((label, ""),), anchor="end")
    room = words.width + PLUS + 6 if label else PLUS
    mark = [words.at(room, 0)] if label else []
    return Figure(room + PLUS, 2 * PLUS, room, (Plus(room, PLUS), *mark))


def around(inner: Figure, label: str = "") -> Figure:
    """A residual step: what comes in is added to what the inner figure made of it."""
    fork = Figure(0, 6, 0, (Line(((0, 0), (0, 6))),), open=True)
    whole = upwards([fork, inner, plus(label)], gap=13)
    end, start = whole.height - 3, PLUS
    x = max(whole.axis + inner.width - inner.axis, whole.axis + PLUS) + 16
    skip = Line(((whole.axis, end), (x, end), (x, start), (whole.axis + PLUS, start)), "skip", True)
    return dataclasses.replace(whole, width=max(whole.width, x + 2)).having(skip)


def split(branches: Sequence[Figure], kind: str = "wire", gap: float = 24, arrow: bool = True) -> Figure:
    """The stream goes into each of the branches and comes together again."""
    row = beside(branches, gap)
    axes, x = [], 0.0
    for branch in branches:
        axes.append(x + branch.axis)
        x += branch.width + gap
    rise = 22.0
    axis = (axes[0] + axes[-1]) / 2
    marks, ports = row.at(0, rise)
    height = row.height + 2 * rise
    lines: list[Mark] = []
    for at, branch in zip(axes, branches, strict=True):
        turns = [(axis, height - 8), (at, height - 8)] if at != axis else []
        lines.append(Line(((axis, height), *turns, (at, height - rise)), kind, arrow))
        turns = [(at, 8.0), (axis, 8.0)] if at != axis else []
        lines.append(Line(((at, rise + row.height - branch.height), *turns, (axis, 0)), kind))
    return Figure(row.width, height, axis, (*lines, *marks), ports)


def framed(inner: Figure, kind: str, pad: float = 16, tip: str = "") -> Figure:
    """In a frame that the stream passes at its bottom and at its top."""
    figure = inner.padded(pad, pad, pad, pad)
    ends = (
        Line(((figure.axis, figure.height), (figure.axis, figure.height - pad))),
        Line(((figure.axis, pad), (figure.axis, 0))),
    )
    frame = Box(0, 0, figure.width, figure.height, kind, (), tip, 12)
    return dataclasses.replace(figure, marks=(frame, *ends, *figure.marks))


def lines_of(marks: Sequence[Mark]) -> list[Words]:
    """Every line of text, in boxes and outside."""
    return [words for mark in marks for words in ([mark] if isinstance(mark, Words) else getattr(mark, "words", ()))]
