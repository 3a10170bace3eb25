"""Growth of models by year: parameters, training compute, tokens or context of published models, and the doubling time.

The line is fitted to the records: models that are larger than every model before them.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

from anyformer.look.figures import new
from anyformer.specs.messages import nearest, quote
from anyformer_course.pictures.points import name_points
from anyformer_course.pictures.published_figures import published_models
from anyformer_course.shown import Shown, Table

FIGURES = ("parameters", "compute", "tokens", "context")
KINDS = ("", "encoder", "decoder", "encoder-decoder")


def example(figure: str = "parameters", *, since: int = 2017, kind: str = "") -> Shown:
    """Fit the records of a `figure` since a year. `kind`: "encoder", "decoder" or "encoder-decoder" (default: all)."""
    if figure not in FIGURES:
        raise ValueError(f"no figure {quote(figure)}; {nearest(figure, FIGURES)}")
    if kind not in KINDS:
        raise ValueError(f"no kind {quote(kind)}; use encoder, decoder or encoder-decoder")
    models = [
        (model, getattr(model, figure))
        for model in sorted(published_models(), key=lambda model: model.date)
        if getattr(model, figure) and model.time >= since and kind in ("", model.kind)
    ]
    records: list[tuple[Any, float]] = []
    for model, value in models:
        if not records or value > records[-1][1]:
            records.append((model, value))
    if len(records) < 2:
        raise ValueError(f"since {since} there are {len(records)} records of {figure}; choose an earlier year")
    times = [model.time for model, _ in records]
    fit = statistics.linear_regression(times, [math.log2(value) for _, value in records])  # doublings per year
    months, factor = 12 / fit.slope, records[-1][1] / records[0][1]

    def draw() -> Any:
        chart, axes = new(1, 1, 9, 4.6)
        axis = axes[0, 0]
        axis.plot([model.time for model, _ in models], [value for _, value in models], ".", color="gray")
        axis.plot(times, [value for _, value in records], "o", color="C0")
        axis.plot(times, [2 ** (fit.intercept + fit.slope * time) for time in times], color="C1",
                  label=f"doubles in {months:.1f} months")  # fmt: skip
        axis.set(yscale="log", ylabel=figure)
        axis.legend(frameon=False)
        axis.margins(x=0.1)
        name_points(axis, [(model.name, model.time, value) for model, value in records])
        return chart

    first, last = records[0][0], records[-1][0]
    return Shown(
        f"From {first.name} ({first.date}) to {last.name} ({last.date}) the {figure} grew {factor:,.0f} times; on a "
        f"line through all records they double in {months:.1f} months.",
        [Table(f"records of {figure}, published", ("model", "date", "published", "times the record before", "source"), [
            [model.name, model.date, value, value / records[i - 1][1] if i else None, model.source]
            for i, (model, value) in enumerate(records)
        ])],
        draw,
    )  # fmt: skip
