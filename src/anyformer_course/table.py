"""Tables of worked examples, and how their cells are written."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

PAGE_ROWS = 10  # longer tables are folded on pages
OPEN_TABLES = 2  # of a stop; later tables are folded
PAGE_LIMIT = 200  # rows of a table on a page


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of numbers and words under a title. The first column names the rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]  # numbers, strings, booleans or None; numbers are rounded only for display


def number(value: Any) -> str:
    """Format a cell: floats with three significant digits, integers exactly.

    >>> [number(value) for value in (0.123456, 1234567.0, 124439808, 2017, -0.0001234, True, None, "cat")]
    ['0.123', '1,230,000', '124,439,808', '2017', '-0.000123', 'yes', '', 'cat']
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        if not math.isfinite(value) or value == 0:
            return "0" if value == 0 else f"{value:g}"
        rounded = float(f"{value:.3g}")
        if 1000 <= abs(rounded) < 1e15:
            return f"{rounded:,.0f}" if abs(rounded) >= 10_000 else f"{rounded:.0f}"
        return f"{rounded:.3g}"
    return str(value)


def tiny(error: float) -> str:
    """Format a rounding error: one digit and a power of ten.

    >>> tiny(0.0), tiny(4.77e-7)
    ('0', '5e-07')
    """
    return f"{error:.0e}" if error else "0"


def is_numeric(table: Table, column: int) -> bool:
    cells = [row[column] for row in table.rows if row[column] is not None]
    return bool(cells) and all(isinstance(cell, (int, float)) and not isinstance(cell, bool) for cell in cells)


def is_folded(table: Table, index: int) -> bool:
    return index >= OPEN_TABLES or len(table.rows) > PAGE_ROWS
