"""Pictures of descriptions: every one draws, nothing overlaps, and what is drawn is what is described."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from catalogue import every_case, spec_of

import anyformer as af
from anyformer.cli.listing import listed
from anyformer.drawing import Drawing, draw
from anyformer.drawing.figure import Box, Figure, Line, Words, lines_of
from anyformer.drawing.svg import MARGIN

Bounds = tuple[float, float, float, float]


def meet(a: Bounds, b: Bounds, by: float = 0.5) -> bool:
    return a[0] < b[2] - by and b[0] < a[2] - by and a[1] < b[3] - by and b[1] < a[3] - by


def inside(a: Bounds, b: Bounds, by: float = 0.5) -> bool:
    return a[0] >= b[0] - by and a[1] >= b[1] - by and a[2] <= b[2] + by and a[3] <= b[3] + by


def faults(figure: Figure) -> Iterator[str]:
    """What cannot be read: text that leaves its box or the picture, or lies on other text, on a box or on a line."""
    words, boxes = lines_of(figure.marks), [mark for mark in figure.marks if isinstance(mark, Box)]
    whole = (-MARGIN, -MARGIN, figure.width + MARGIN, figure.height + MARGIN)
    for box in boxes:
        yield from (f"{text(each)} leaves its box" for each in box.words if not inside(each.bounds, box.bounds))
        yield from ("a box leaves the picture" for _ in [0] if not inside(box.bounds, whole))
    yield from (f"{text(each)} leaves the picture" for each in words if not inside(each.bounds, whole))
    for a, b in itertools.combinations(words, 2):
        if meet(a.bounds, b.bounds):
            yield f"{text(a)} on {text(b)}"
    leaves = [box for box in boxes if box.kind not in ("frame", "panel")]
    for a, b in itertools.combinations(leaves, 2):
        if meet(a.bounds, b.bounds) and not inside(a.bounds, b.bounds) and not inside(b.bounds, a.bounds):
            yield f"boxes {a.tip or a.kind} and {b.tip or b.kind} overlap"
    free = [mark for mark in figure.marks if isinstance(mark, Words)]
    yield from (f"{text(each)} on a box" for each in free for box in leaves
                if meet(each.bounds, box.bounds) and not inside(each.bounds, box.bounds))  # fmt: skip
    for line in (mark for mark in figure.marks if isinstance(mark, Line)):
        for (ax, ay), (bx, by) in itertools.pairwise(line.points):
            if ax == bx or ay == by:  # the straight ones
                bounds = (min(ax, bx) - 1, min(ay, by) - 1, max(ax, bx) + 1, max(ay, by) + 1)
                yield from (f"a line through {text(each)}" for each in free if meet(each.bounds, bounds, 0))


def text(words: Words) -> str:
    return repr("".join(span for span, _ in words.spans))


NAMES = [row["name"] for row in listed()]


def test_every_named_description_draws() -> None:
    for name in NAMES:
        found = [*faults(draw(name).figure)]
        assert not found, (name, found[:5])
