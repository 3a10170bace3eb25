"""What a worked example returns: numbers first, then a picture."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of numbers and words under a title. The first column names the rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]  # numbers, strings, booleans or None; numbers are rounded only for display


@dataclasses.dataclass(frozen=True)
class Shown:
    """A worked example: one sentence about the result, tables, and a function that draws the picture."""

    says: str
    tables: Sequence[Table]
    draw: Callable[[], Any]  # returns a matplotlib figure; called only if somebody wants the picture

    def json(self) -> dict[str, Any]:
        return {"says": self.says, "tables": [dataclasses.asdict(table) for table in self.tables]}

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the sentence, the picture and the tables."""
        from anyformer_course.render import html_shown

        return html_shown(self)


def names() -> list[str]:
    """Return the names of all worked examples: the files of `shows/`, without importing them."""
    return sorted(path.stem.replace("_", "-") for path in Path(__file__).with_name("shows").glob("[a-z]*.py"))


def show(name: str, *inputs: Any, **options: Any) -> Shown:
    """Compute a worked example: `show("attention", "the cat sat down")`.

    Each example is a function `example(text=..., *, option=...) -> Shown` in `shows/NAME.py`.
    """
    from anyformer.specs.messages import nearest, quote

    if name not in names():
        raise ValueError(f"no worked example is called {quote(name)}; {nearest(name, names())}")
    module = importlib.import_module(f"anyformer_course.shows.{name.replace('-', '_')}")
    return module.example(*inputs, **options)
