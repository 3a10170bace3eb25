"""Tables, numbers, spinners and progress bars for the verbs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = (), total: bool = False) -> None:
    """Print rows under a header, with the columns in `right` aligned right: a drawn table on a terminal, otherwise
    plain text. With `total`, the last row is a total."""
    if sys.stdout.isatty():
        import rich.box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        drawn = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
        for i, name in enumerate(header):
            drawn.add_column(name, justify="right" if i in right else "left", overflow="fold")
        for i, row in enumerate(rows):
            drawn.add_row(*map(Text, row), end_section=total and i == len(rows) - 2)  # Text: no markup from names
        Console().print(drawn)
        return
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        cells = [cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths))]
        print("  ".join(cells).rstrip())


def short_number(number: float) -> str:
    """124439808 -> '124M'"""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= size * 0.9995:
            return f"{float(f'{number / size:.3g}'):g}{unit}"
    return f"{number:g}"


def bytes_of(number: float) -> str:
    """497759232 -> '474.7 MiB'"""
    for size, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:g} B"


@contextlib.contextmanager
def spinner(message: str) -> Iterator[None]:
    """Show a spinner on stderr while a block runs, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(message)):
        yield


@contextlib.contextmanager
def progress(what: str) -> Iterator[Any]:
    """Show a progress bar, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
