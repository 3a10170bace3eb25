"""Figures: marks with positions, a size, and a stream that runs through them from bottom to top.

A `Figure` does not depend on models. The stream crosses its lower and upper edges at x = `axis`. Functions stack
figures, place them in a row or frame them, and return new figures. Units are pixels; y points down.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from anyformer.drawing import text_width

ARROW = 9.0  # length of an arrowhead
PLUS = 11.0  # radius of the circle around a plus
SMALL, PLAIN, LARGE, HUGE = 15.0, 16.0, 28.0, 30.0  # font sizes
Point = tuple[float, float]
Bounds = tuple[float, float, float, float]  # left, top, right, bottom


@dataclasses.dataclass(frozen=True)
class FigureText:
    """One line of text; y is its baseline. Each span is (text, class)."""

    x: float
    y: float
    spans: tuple[tuple[str, str], ...]
    size: float = SMALL
    bold: bool = False
    anchor: str = "start"

    @property
    def width(self) -> float:
        return text_width.width("".join(span for span, _ in self.spans), self.size, self.bold)

    @property
    def bounds(self) -> Bounds:
        left = self.x - {"start": 0.0, "middle": self.width / 2, "end": self.width}[self.anchor]
        return left, self.y - 0.8 * self.size, left + self.width, self.y + 0.25 * self.size

    def shift(self, dx: float, dy: float) -> FigureText:
        return dataclasses.replace(self, x=self.x + dx, y=self.y + dy)


@dataclasses.dataclass(frozen=True)
class Box:
    """A rectangle with its text; `tip` is the tooltip."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    words: tuple[FigureText, ...] = ()
    tip: str = ""
    radius: float = 7.0

    @property
    def bounds(self) -> Bounds:
        return self.x, self.y, self.x + self.width, self.y + self.height

    def shift(self, dx: float, dy: float) -> Box:
        words = tuple(each.shift(dx, dy) for each in self.words)
        return dataclasses.replace(self, x=self.x + dx, y=self.y + dy, words=words)


@dataclasses.dataclass(frozen=True)
class Polyline:
    """A line through points with round corners, and an arrowhead at the end if `arrow`."""

    points: tuple[Point, ...]
    kind: str = "wire"
    arrow: bool = False

    def shift(self, dx: float, dy: float) -> Polyline:
        return dataclasses.replace(self, points=tuple((x + dx, y + dy) for x, y in self.points))


@dataclasses.dataclass(frozen=True)
class Plus:
    """The sign where streams are added."""

    x: float
    y: float

    def shift(self, dx: float, dy: float) -> Plus:
        return Plus(self.x + dx, self.y + dy)


Mark = FigureText | Box | Polyline | Plus


@dataclasses.dataclass(frozen=True)
class Figure:
    width: float
    height: float
    axis: float  # x of the stream
    marks: tuple[Mark, ...] = ()
    ports: tuple[tuple[str, Point], ...] = ()  # (name, end point) of lines from outside the figure
    open: bool = False  # begins with a line, so it needs no arrow below it

    def shift(self, dx: float, dy: float) -> tuple[tuple[Mark, ...], tuple[tuple[str, Point], ...]]:
        """Return the shifted marks and ports."""
        ports = tuple((name, (x + dx, y + dy)) for name, (x, y) in self.ports)
        return tuple(mark.shift(dx, dy) for mark in self.marks), ports

    def add_marks(self, *marks: Mark, ports: Sequence[tuple[str, Point]] = ()) -> Figure:
        return dataclasses.replace(self, marks=(*self.marks, *marks), ports=(*self.ports, *ports))

    def pad(self, left: float = 0, top: float = 0, right: float = 0, bottom: float = 0) -> Figure:
        marks, ports = self.shift(left, top)
        size = self.width + left + right, self.height + top + bottom
        return Figure(*size, self.axis + left, marks, ports, self.open and not bottom)


def stack_up(figures: Sequence[Figure | str], gap: float = 16) -> Figure:
    """Stack figures, the first at the bottom, joined by arrows. A string between two figures labels their arrow."""
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
            marks.append(Polyline(((left, y), (left, y - space)), arrow=not each.open))
            if label:
                words = FigureText(left + 10, y - space / 2 + 5, ((label, "shape"),))
                marks.append(words)
                right = max(right, words.bounds[2] - left)
            y -= space
        shifted, shifted_ports = each.shift(left - each.axis, y - each.height)
        marks.extend(shifted)
        ports.extend(shifted_ports)
        y, label, last = y - each.height, "", each
    first = next(each for each in figures if isinstance(each, Figure))
    shifted, shifted_ports = Figure(0, 0, 0, tuple(marks), tuple(ports)).shift(0, -y)
    return Figure(left + right, -y, left, shifted, shifted_ports, first.open)


def place_in_row(figures: Sequence[Figure], gap: float, axis: int | None = None) -> Figure:
    """Place figures side by side, aligned at the bottom. The axis is in the middle, or the axis of figure `axis`."""
    height, x = max(each.height for each in figures), 0.0
    marks: list[Mark] = []
    ports: list[tuple[str, Point]] = []
    axes: list[float] = []
    for each in figures:
        shifted, shifted_ports = each.shift(x, height - each.height)
        marks.extend(shifted)
        ports.extend(shifted_ports)
        axes.append(x + each.axis)
        x += each.width + gap
    width = x - gap
    return Figure(width, height, width / 2 if axis is None else axes[axis], tuple(marks), tuple(ports))


def plus(label: str = "") -> Figure:
    """Draw the sum of two streams. The label at its left names the residual unless it is a plain sum."""
    words = FigureText(-PLUS - 6, PLUS + 5, ((label, ""),), anchor="end")
    room = words.width + PLUS + 6 if label else PLUS
    mark = [words.shift(room, 0)] if label else []
    return Figure(room + PLUS, 2 * PLUS, room, (Plus(room, PLUS), *mark))


def add_residual(inner: Figure, label: str = "") -> Figure:
    """Draw a skip connection around the inner figure."""
    fork = Figure(0, 6, 0, (Polyline(((0, 0), (0, 6))),), open=True)
    whole = stack_up([fork, inner, plus(label)], gap=13)
    end, start = whole.height - 3, PLUS
    x = max(whole.axis + inner.width - inner.axis, whole.axis + PLUS) + 16
    skip = Polyline(((whole.axis, end), (x, end), (x, start), (whole.axis + PLUS, start)), "skip", True)
    return dataclasses.replace(whole, width=max(whole.width, x + 2)).add_marks(skip)


def split(branches: Sequence[Figure], kind: str = "wire", gap: float = 24, arrow: bool = True) -> Figure:
    """Split the stream into branches and join them again."""
    row = place_in_row(branches, gap)
    axes, x = [], 0.0
    for branch in branches:
        axes.append(x + branch.axis)
        x += branch.width + gap
    rise = 22.0
    axis = (axes[0] + axes[-1]) / 2
    marks, ports = row.shift(0, rise)
    height = row.height + 2 * rise
    lines: list[Mark] = []
    for at, branch in zip(axes, branches, strict=True):
        turns = [(axis, height - 8), (at, height - 8)] if at != axis else []
        lines.append(Polyline(((axis, height), *turns, (at, height - rise)), kind, arrow))
        turns = [(at, 8.0), (axis, 8.0)] if at != axis else []
        lines.append(Polyline(((at, rise + row.height - branch.height), *turns, (axis, 0)), kind))
    return Figure(row.width, height, axis, (*lines, *marks), ports)


def draw_frame(inner: Figure, kind: str, pad: float = 16, tip: str = "") -> Figure:
    """Draw a frame around a figure; the stream crosses it at the bottom and at the top."""
    figure = inner.pad(pad, pad, pad, pad)
    ends = (
        Polyline(((figure.axis, figure.height), (figure.axis, figure.height - pad))),
        Polyline(((figure.axis, pad), (figure.axis, 0))),
    )
    frame = Box(0, 0, figure.width, figure.height, kind, (), tip, 12)
    return dataclasses.replace(figure, marks=(frame, *ends, *figure.marks))


def text_lines(marks: Sequence[Mark]) -> list[FigureText]:
    """Return every line of text, inside and outside boxes."""
    lines: list[FigureText] = []
    for mark in marks:
        lines += [mark] if isinstance(mark, FigureText) else mark.words if isinstance(mark, Box) else ()
    return lines
