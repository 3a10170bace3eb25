"""Names next to the points of a chart."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

FEW = 20  # with more points, names may cover points, so that more names have room


def name_points(axis: Any, points: Iterable[tuple[str, float, float]], size: float = 8) -> None:
    """Write each name next to its point (x, y), inside the axes. A name without room on any side is left out."""
    axis.figure.draw_without_rendering()  # computes the layout
    scale = 72 / axis.figure.dpi
    edge_left, edge_low, edge_right, edge_high = (value * scale for value in axis.get_window_extent().extents)
    places = [(name, x, y, *(axis.transData.transform((x, y)) * scale)) for name, x, y in points]
    # in points: left, right, low, high; with few points, names do not cover the others
    occupied = [(x - 2, x + 2, y - 2, y + 2) for *_, x, y in places] if len(places) <= FEW else []
    for name, x, y, across, up in places:
        width = 0.55 * size * len(name)
        for dx, dy in itertools.product((4, -width - 4, -width / 2), (2, -size - 1, 6, -size - 5)):
            left, low = across + dx, up + dy
            right, high = left + width, low + size
            is_inside = edge_left <= left and right <= edge_right and edge_low <= low and high <= edge_high
            if is_inside and all(left > b or right < a or low > d or high < c for a, b, c, d in occupied):
                occupied.append((left, right, low, high))
                axis.annotate(name, (x, y), (dx, dy), textcoords="offset points", fontsize=size)
                break
