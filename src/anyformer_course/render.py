"""Write a Shown for the terminal and for pages (Markdown), and its picture to a file."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from anyformer.specs.messages import amount, shorten
from anyformer_course.shown import Shown
from anyformer_course.table import PAGE_LIMIT, Table, is_folded, is_numeric, number

TERMINAL_ROWS = 24  # more rows are left out in the terminal
PLAIN_WIDTH = 120  # columns of text if the output is not a terminal
CELL = 440  # characters of a cell in the terminal
TEXT_WIDTH = 24  # columns of text that a cell with words needs at least


# -- terminal ---------------------------------------------------------------------------------------------------------


def console(out: TextIO | None = None) -> Any:
    from rich.console import Console

    out = out or sys.stdout
    return Console(width=None if out.isatty() else PLAIN_WIDTH, highlight=False, file=out)


def print_shown(shown: Shown, to: Any, whole: str = "--json prints all") -> None:
    """Print the tables, cut to the width of the console, and then the sentence. `whole`: how to see all of a table."""
    from rich.text import Text

    for table in shown.tables:
        for piece in terminal_table(table, to.width, whole):
            to.print(piece)
        to.print()
    to.print(Text(shown.says, style="bold"))


def terminal_table(table: Table, width: int, whole: str = "--json prints all") -> Iterator[Any]:
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
        drawn.add_row(*(Text(shorten(number(row[i]), CELL)) for i in columns))
    yield drawn
    cut = ((len(table.columns) - len(columns), "more column"), (len(table.rows) - len(rows), "more row"))
    if missing := " and ".join(amount(count, what) for count, what in cut if count):
        yield Text(f"... {missing}; {whole}", style="dim")


def fitting_columns(table: Table, width: int) -> list[int]:
    """Return the columns that fit next to each other. Words may wrap, numbers may not."""
    columns: list[int] = []
    used = 0
    for i, name in enumerate(table.columns):
        longest = max([len(str(name)), *(len(number(row[i])) for row in table.rows[:TERMINAL_ROWS])])
        needed = longest if is_numeric(table, i) else min(longest, TEXT_WIDTH)
        used += needed + (3 if columns else 0)  # the space between columns
        if used > width and len(columns) > 1:
            break
        columns.append(i)
    return columns


def save_picture(shown: Shown, path: str) -> None:
    target = Path(path)
    if target.suffix.lower() not in (".svg", ".png", ".pdf"):
        raise ValueError(f"--picture {path}: the name must end in .svg, .png or .pdf")
    if target.suffix.lower() == ".svg":
        target.write_text(shown.svg(), encoding="utf-8")
        return
    with warnings.catch_warnings(record=True) as caught:
        shown.figure().savefig(target, dpi=150, facecolor="white")
    if caught:  # one for each character that the font lacks
        warnings.warn(f"{path}: {caught[0].message}", stacklevel=2)


# -- Markdown ---------------------------------------------------------------------------------------------------------


def markdown_shown(shown: Shown, picture: str, folded: bool = False) -> str:
    """Return the sentence, the picture (a path) and the tables; long tables, and all if `folded`, are folded."""
    alt = escape(re.sub(r"[\[\]]", "", shown.says))  # brackets end the text of an image
    parts = [f"**{escape(shown.says)}**", f"[![{alt}]({picture}){{ .shown }}]({picture})"]
    for i, table in enumerate(shown.tables):
        text = markdown_table(table)
        if folded or is_folded(table, i):
            body = "\n".join(f"    {line}" for line in text.splitlines())
            title = table.title.replace('"', "'")
            rows = amount(len(table.rows), "row")
            parts.append(f'??? info "{escape(title)} ({rows})"\n\n{body}')
        else:
            parts.append(f"*{escape(table.title)}*\n\n{text}")
    return "\n\n".join(parts)


def markdown_table(table: Table) -> str:
    rule = ["---:" if is_numeric(table, i) else "---" for i in range(len(table.columns))]
    rows: list[Sequence[str]] = [[escape(str(name)) for name in table.columns], rule]
    rows += [[escape(number(cell)) for cell in row] for row in table.rows[:PAGE_LIMIT]]
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    more = len(table.rows) - PAGE_LIMIT
    return f"{text}\n\n{amount(more, 'more row')}" if more > 0 else text


def escape(text: str) -> str:
    """Escape Markdown and HTML in output of the code."""
    text = re.sub(r"([\\`*_{}\[\]#|!])", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
