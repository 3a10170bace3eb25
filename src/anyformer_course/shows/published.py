"""Published figures of models: parameters, training tokens, compute, context, GLUE or SuperGLUE, with the source.

Next to each figure is our own count, if `anyformer zoo` has the model and the figure can be counted.
"""

from __future__ import annotations

from typing import Any

from anyformer.look.figures import new
from anyformer.specs.messages import amount, nearest, quote
from anyformer_course.pictures.points import name_points
from anyformer_course.pictures.published_figures import PublishedModel, our_count, published_models
from anyformer_course.shown import Shown, Table
from anyformer_course.table import number

FIGURES = ("parameters", "tokens", "compute", "context", "glue", "superglue")
COUNTED = 8  # models; counting more takes seconds


def example(figure: str = "parameters", *, model: str = "GPT") -> Shown:
    """Return one figure of all models whose name contains `model` ("" for all), by date."""
    if figure not in FIGURES:
        raise ValueError(f"no figure {quote(figure)}; {nearest(figure, FIGURES)}")
    named = [each for each in published_models() if model.lower() in each.name.lower()]
    models = sorted((each for each in named if getattr(each, figure) is not None), key=lambda each: each.date)
    if not models:
        raise ValueError(f"no published {figure} of a model named {quote(model)}")
    counts = figure in ("parameters", "compute") and len(models) <= COUNTED
    rows = [
        (each.name, each.date, getattr(each, figure), our_figure(each, figure) if counts else None, each.source)
        for each in models
    ]

    def draw() -> Any:
        chart, axes = new(1, 1, 9, 5)
        axis = axes[0, 0]
        axis.plot([each.time for each in models], [row[2] for row in rows], "o", label="published")
        if any(row[3] for row in rows):
            axis.plot([each.time for each in models], [row[3] for row in rows], "x", label="our count")
        if "glue" not in figure:
            axis.set_yscale("log")
        axis.set_ylabel(figure)
        axis.set_title(f"{figure} of published models", fontsize=9)
        axis.legend(fontsize=8)
        axis.margins(x=0.1)
        if len({each.date for each in models}) == 1:  # else the axis spans two centuries
            axis.set_xlim(models[0].time - 1, models[0].time + 1)
        axis.xaxis.get_major_locator().set_params(integer=True)
        name_points(axis, [(each.name, each.time, row[2]) for each, row in zip(models, rows, strict=True)])
        return chart

    last = max(rows, key=lambda row: row[2])
    columns = ("model", "date", "published", *(["our count"] if counts else []), "source")
    return Shown(
        f"Of {amount(len(rows), 'model')} with published {figure}, {last[0]} ({last[1]}) has the highest value: "
        f"{number(last[2])}.",
        [Table(f"{figure}, published", columns, [row if counts else (*row[:3], row[4]) for row in rows])],
        draw,
    )  # fmt: skip


def our_figure(model: PublishedModel, figure: str) -> float | None:
    """Return our count of a model's parameters, or its compute as 6 N D."""
    if not model.zoo:
        return None
    counted = our_count(model)
    return counted.parameters if figure == "parameters" else model.estimate_for(counted.active)
