"""The tables on the slides: a show prints every row of numbers."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from anyformer_course import coverage, show

DECKS = Path(__file__).parents[3] / "shared" / "lectures"
UNITS = {"": 1, "%": 0.01, "M": 1e6, "B": 1e9, "billion": 1e9, "T": 1e12}
NUMBER = re.compile(r"(\d+(?:\.\d+)?)(?:\s*(?:\\times|\\cdot|[×·])\s*10\^\{?(-?\d+)\}?)?\s*(%|[MBT]\b|billion|)")
MISREAD = "24374"  # begins the numbers of a line that only this copy of the slides has
# lecture, the table's first words, words after it, cells with numbers, show, number of rows
TABLES: dict[str, tuple[int, str, str, slice, tuple[Any, ...], int]] = {
    "translation": (4, "Table 2: The Transformer achieves", "Next, document", slice(1, None), ("wmt",), 10),
    "articles": (4, "Test perplexity", "The old standard", slice(1, None), ("wikisum",), 6),
    "glue": (4, "All top models", "Outline", slice(-1, None), ("glue",), 6),
    "gpt-3": (4, "GPT-3 Small", "From GPT-3;", slice(1, None), ("gpt3-sizes",), 8),
    "modifications": (4, "Vanilla Transformer", "Sharan", slice(1, None), ("modifications",), 42),
    "gpt-3 with training": (5, "GPT-3 Small", "Dataset", slice(1, None), ("gpt3-sizes",), 8),
    "data": (5, "Common Crawl (filtered)\t", "GPT-3 Language", slice(1, None), ("data-mix",), 5),
    "vit": (5, "ViT-Base", "Figure 7", slice(1, 5), ("count", "vit-b16 vit-l16 vit-h14"), 3),
    "reka": (5, "MMLU", "Closed-source", slice(1, None), ("frontier",), 7),
}  # fmt: skip


@pytest.mark.skipif(not DECKS.exists(), reason="the decks are not here: ../shared/lectures")
@pytest.mark.usefixtures("shared_show")
@pytest.mark.parametrize("name", TABLES)
def test_a_show_prints_the_rows_of_a_slide(name: str) -> None:
    lecture, first, last, cells, call, count = TABLES[name]
    text = coverage.deck_path(DECKS, lecture).read_text(encoding="utf-8")
    text = text[text.index(first) :]
    rows = list(slide_rows(text[: text.index(last)], cells))
    printed: dict[Any, list[float]] = {}  # by the first cell: tables with the same rows are one table
    for table in show(*call).tables:
        for name, *values in table.rows:
            printed.setdefault(name, []).extend(float(each) for each in values if is_number(each))
    assert len(rows) == count
    for row in rows:
        assert any(contains(values, row) for values in printed.values()), row


def slide_rows(text: str, cells: slice) -> list[list[float]]:
    """Return the numbers of each row, without names. Leave out rows that the copy of the slides has merged."""
    lines = [line for line in text.replace("·\t", "· ").splitlines() if MISREAD not in line]
    rows = [[numbers(cell) for cell in line.split("\t")[cells]] for line in lines]
    found = [row for row in rows if any(row) and all(len(cell) <= 1 for cell in row)]
    return [[number for cell in row for number in cell] for row in found]


def numbers(cell: str) -> list[float]:
    plain = re.sub(r"±\s*[\d.]+|\$|\\,", "", cell)
    return [float(each) * 10.0 ** int(power or 0) * UNITS[unit] for each, power, unit in NUMBER.findall(plain)]


def is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) or (isinstance(cell, str) and cell.isdecimal())


def contains(printed: list[float], row: list[float]) -> bool:
    """Whether all numbers of a slide's row are printed, perhaps in millions, 10^9 or 10^12."""
    values = [value * unit for value in printed for unit in (1, 1e6, 1e9, 1e12)]
    return all(any(math.isclose(number, value, rel_tol=1e-9) for value in values) for number in row)
