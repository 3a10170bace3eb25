"""Write a Shown for the terminal, for notebooks (HTML) and for pages (Markdown), and its picture as SVG."""

from __future__ import annotations

import base64
import html
import io
import math
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from anyformer_course.shown import Shown, Table

TERMINAL_ROWS = 24  # more rows are left out in the terminal
PAGE_ROWS = 10  # longer tables are folded on pages
OPEN_TABLES = 2  # of a stop; later tables are folded
PAGE_LIMIT = 200  # rows of a table on a page
PLAIN_WIDTH = 120  # columns of text if the output is not a terminal
TEXT_WIDTH = 24  # columns of text that a cell with words needs at least


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


def is_numeric(table: Table, column: int) -> bool:
    cells = [row[column] for row in table.rows if row[column] is not None]
    return bool(cells) and all(isinstance(cell, (int, float)) and not isinstance(cell, bool) for cell in cells)


# -- terminal ---------------------------------------------------------------------------------------------------------


def console() -> Any:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False, file=sys.stdout)


def print_shown(shown: Shown, to: Any) -> None:
    """Print the tables, cut to the width of the console, and then the sentence."""
    from rich.text import Text

    for table in shown.tables:
        for piece in terminal_table(table, to.width):
            to.print(piece)
        to.print()
    to.print(Text(shown.says, style="bold"))


def terminal_table(table: Table, width: int) -> Iterator[Any]:
    import rich.box
    from rich.table import Table as Drawn
    from rich.text import Text

    columns = fitting_columns(table, width)
    rows = table.rows[:TERMINAL_ROWS]
    yield Text(table.title, style="italic")
    drawn = Drawn(box=rich.box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i in columns:
        numeric = is_numeric(table, i)
        drawn.add_column(Text(str(table.columns[i])), justify="right" if numeric else "left", no_wrap=numeric)
    for row in rows:
        drawn.add_row(*(Text(number(row[i])) for i in columns))
    yield drawn
    cut = ((len(table.columns) - len(columns), "columns"), (len(table.rows) - len(rows), "rows"))
    if missing := " and ".join(f"{count} more {what}" for count, what in cut if count):
        yield Text(f"... {missing}; --json prints all", style="dim")


def fitting_columns(table: Table, width: int) -> list[int]:
    """Return the columns that fit next to each other. Words may wrap, numbers may not."""
    columns, used = [], 0
    for i, name in enumerate(table.columns):
        longest = max([len(str(name)), *(len(number(row[i])) for row in table.rows[:TERMINAL_ROWS])])
        used += (
            longest if is_numeric(table, i) else min(longest, TEXT_WIDTH)
        ) + 3  # padding and the line between columns
        if used > width and len(columns) > 1:
            break
        columns.append(i)
    return columns


# -- pictures ---------------------------------------------------------------------------------------------------------


def svg(shown: Shown) -> str:
    """Draw the picture as SVG, the same bytes every time, on white: readable on light and dark pages."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "anyformer", "svg.fonttype": "none"}):
        shown.draw().savefig(out, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def save_picture(shown: Shown, path: str) -> None:
    target = Path(path)
    if target.suffix.lower() not in (".svg", ".png", ".pdf"):
        raise ValueError(f"--picture {path}: the name must end in .svg, .png or .pdf")
    if target.suffix.lower() == ".svg":
        target.write_text(svg(shown), encoding="utf-8")
    else:
        shown.draw().savefig(target, dpi=150, facecolor="white")


def picture_url(shown: Shown) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg(shown).encode()).decode()


# -- HTML -------------------------------------------------------------------------------------------------------------


def html_shown(shown: Shown) -> str:
    """Return the sentence, the picture and the tables for a notebook or a page without other files."""
    parts = [f"<p><strong>{html.escape(shown.says)}</strong></p>"]
    alt = html.escape(shown.says, quote=True)
    parts.append(f'<p><img alt="{alt}" src="{picture_url(shown)}" style="max-width: 100%; background: white"></p>')
    for i, table in enumerate(shown.tables):
        opened = "" if is_folded(table, i) else " open"
        summary = f"<summary>{html.escape(table.title)}</summary>"
        parts.append(f"<details{opened}>{summary}{html_table(table)}</details>")
    return "\n".join(parts)


def html_table(table: Table) -> str:
    aligned = [' style="text-align: right"' if is_numeric(table, i) else "" for i in range(len(table.columns))]
    head = "".join(f"<th{style}>{html.escape(str(name))}</th>" for name, style in zip(table.columns, aligned))
    body = "".join(
        "<tr>" + "".join(f"<td{style}>{html.escape(number(cell))}</td>" for cell, style in zip(row, aligned)) + "</tr>"
        for row in table.rows[:PAGE_LIMIT]
    )
    return f'<div style="overflow-x: auto"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def html_text(text: str) -> str:
    """Turn a sentence of a lesson into HTML: `code`, **bold**, *italic* and [links](url)."""
    pieces = re.split(r"(`[^`]+`)", text)
    return "".join(
        f"<code>{html.escape(piece[1:-1])}</code>" if i % 2 else marked_up(html.escape(piece))
        for i, piece in enumerate(pieces)
    )


def marked_up(text: str) -> str:
    text = re.sub(r"\[([^\]]+)\]\((https?://[^)\s]+)\)", r'<a href="\2">\1</a>', text)
    text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)
    return re.sub(r"(?<![\w*])\*(\S(?:.*?\S)?)\*(?![\w*])", r"<em>\1</em>", text)


# -- Markdown ---------------------------------------------------------------------------------------------------------


def is_folded(table: Table, index: int) -> bool:
    return index >= OPEN_TABLES or len(table.rows) > PAGE_ROWS


def markdown_shown(shown: Shown, picture: str, folded: bool = False) -> str:
    """Return the sentence, the picture (a path) and the tables; long tables, and all if `folded`, are folded."""
    alt = re.sub(r"[\[\]]", "", escape(shown.says))
    parts = [f"**{escape(shown.says)}**", f"![{alt}]({picture}){{ .shown }}"]
    for i, table in enumerate(shown.tables):
        text = markdown_table(table)
        if folded or is_folded(table, i):
            body = "\n".join(f"    {line}" for line in text.splitlines())
            title = table.title.replace('"', "'")
            parts.append(f'??? info "{escape(title)} ({len(table.rows)} rows)"\n\n{body}')
        else:
            parts.append(f"*{escape(table.title)}*\n\n{text}")
    return "\n\n".join(parts)


def markdown_table(table: Table) -> str:
    rule = ["---:" if is_numeric(table, i) else "---" for i in range(len(table.columns))]
    rows: list[Sequence[str]] = [[escape(str(name)) for name in table.columns], rule]
    rows += [[escape(number(cell)) for cell in row] for row in table.rows[:PAGE_LIMIT]]
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    more = len(table.rows) - PAGE_LIMIT
    return f"{text}\n\n{more} more rows" if more > 0 else text


def escape(text: str) -> str:
    """Escape Markdown and HTML in output of the code."""
    text = re.sub(r"([\\`*_{}\[\]#|~!$^=])", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
