"""Adds an evaluation to the report of a run: scores of each class, a picture of the confusions, and the mistakes."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from anyformer.evaluate.class_report import ClassScores, Confusion, picture
from anyformer.evaluate.predictions import mistakes_title, write_rows

BEGIN, END = "<!-- evaluation -->", "<!-- end of evaluation -->"
LISTED = 50  # mistakes on the page; mistakes.csv has all


def add_to_report(
    folder: Path, split: str, wrong: Sequence[dict[str, Any]], counted: Confusion | None, scores: Sequence[ClassScores]
) -> list[Path]:
    """Write mistakes.csv, confusion.png and report.html into the folder of a run, and return their paths. An earlier
    evaluation in report.html is replaced. Other folders are not changed."""
    page = folder / "report.html"
    if not page.is_file():
        return []
    written = [folder / "mistakes.csv"]
    write_rows(written[0], wrong)
    drawn = picture(counted) if counted is not None else None
    if drawn is not None:
        written.append(folder / "confusion.png")
        written[-1].write_bytes(drawn)
    content = f"<h2>Evaluation on {html.escape(split)}</h2>"
    if scores:
        cells = ((each.name, *(f"{value:.3f}" for value in each[1:4]), f"{each.examples:,}") for each in scores)
        content += table(("class", "precision", "recall", "F1", "examples"), cells)
    if drawn is not None:
        content += f'<img alt="confusions" src="data:image/png;base64,{base64.b64encode(drawn).decode()}">'
    if wrong:
        shown = "" if len(wrong) <= LISTED else f" (the first {LISTED}; mistakes.csv has all)"
        content += f"<h2>{mistakes_title(wrong).capitalize()}{shown}</h2>"
        content += table([*wrong[0]], (row.values() for row in wrong[:LISTED]))
    page.write_text(insert(page.read_text("utf-8"), content), "utf-8")
    return [*written, page]


def insert(page: str, content: str) -> str:
    """Return the page with an evaluation: it replaces an earlier one, or is added at the end."""
    before, found, rest = page.partition(BEGIN)
    if not found:
        before, _, rest = page.rpartition("</body>")
        rest = f"{END}</body>{rest}"
    return f"{before}{BEGIN}{content}{END}{rest.partition(END)[2]}"


def table(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    def row(cells: Iterable[Any], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    return f'<table class="grid">{row(header, "th")}{"".join(row(cells, "td") for cells in rows)}</table>'
