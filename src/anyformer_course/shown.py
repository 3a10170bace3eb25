"""What a worked example returns: numbers first, then a picture."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import io
import math
import sys
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from anyformer_course.in_html import example_html
from anyformer_course.table import Table

__all__ = ["Shown", "Table", "names", "show"]


SMALLEST_TEXT = 8  # points


@dataclasses.dataclass(frozen=True)
class Shown:
    """A worked example: one sentence about the result, tables, and a function that draws the picture."""

    says: str
    tables: Sequence[Table]
    draw: Callable[[], Any]  # returns a matplotlib figure; called only if somebody wants the picture

    def json(self) -> dict[str, Any]:
        return {"says": self.says, "tables": [dataclasses.asdict(table) for table in self.tables]}

    def figure(self) -> Any:
        """Draw the picture; text smaller than SMALLEST_TEXT points is enlarged."""
        from matplotlib.figure import Figure
        from matplotlib.text import Text

        figure = self.draw()
        if isinstance(figure, Figure):  # the drawing of an architecture is not
            for axis in (each for axes in figure.axes for each in (axes.xaxis, axes.yaxis)):
                if any(float(label.get_fontsize()) < SMALLEST_TEXT for label in axis.get_ticklabels()):
                    axis.set_tick_params(labelsize=SMALLEST_TEXT)
            for text in figure.findobj(Text):
                text.set_fontsize(max(float(text.get_fontsize()), SMALLEST_TEXT))
        return figure

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the sentence, the picture and the tables."""
        return example_html(self.says, self.tables, self.svg())

    def svg(self) -> str:
        """Draw the picture as SVG, the same bytes every time, on white: readable on light and dark pages."""
        import matplotlib

        out = io.StringIO()
        with matplotlib.rc_context({"svg.hashsalt": "anyformer", "svg.fonttype": "none"}), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # text stays text, in a font of the reader
            self.figure().savefig(out, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
        text = out.getvalue()
        return text[text.index("<svg") :]


def names() -> list[str]:
    """Return the names of all worked examples: the files of `shows/`, without importing them."""
    return sorted(path.stem.replace("_", "-") for path in Path(__file__).with_name("shows").glob("[a-z]*.py"))


def show(name: str, /, *inputs: Any, **options: Any) -> Shown:
    """Compute a worked example: `show("attention", "the cat sat down")`.

    Each example is a function `example(text=..., *, option=...) -> Shown` in `shows/NAME.py`.
    """
    from anyformer.specs.messages import nearest, quote

    if name not in names():
        raise ValueError(f"no worked example is called {quote(name)}; {nearest(name, names())}")
    module = importlib.import_module(f"anyformer_course.shows.{name.replace('-', '_')}")
    check_ranges(module.example, inputs, options)
    with one_thread():
        shown = module.example(*inputs, **options)
    cells = (cell for table in shown.tables for row in table.rows for cell in row)
    if not all(math.isfinite(cell) for cell in cells if isinstance(cell, float)):
        raise ValueError(f"{name}: a result is not a finite number; use less extreme inputs and options")
    return shown


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: the models of worked examples are so small that several threads are slower."""
    torch = sys.modules.get("torch")  # examples without tensors do not import it
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def check_ranges(function: Callable[..., Any], inputs: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Raise a ValueError if an argument is outside the range of its type, such as `width: Count`."""
    from anyformer.specs.field_types import ranges_in

    hints = typing.get_type_hints(function, include_extras=True)
    for name, value in inspect.signature(function).bind(*inputs, **options).arguments.items():
        for limits in ranges_in(hints[name]):
            limits.check(value, name)
