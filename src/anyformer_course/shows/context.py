"""Context length of published models by year, next to the limit of our descriptions."""

from __future__ import annotations

import math
import re
from statistics import linear_regression
from typing import Any

from anyformer.look.figures import new
from anyformer.specs.messages import quote
from anyformer_course.shown import Shown, Table


def example(since: str = "2018", *, kind: str = "") -> Shown:
    """List published context lengths from the year `since`. `kind`: "encoder", "decoder" or "encoder-decoder"."""
    import anyformer as af
    from anyformer.models import position_limit
    from anyformer_course.pictures.points import name_points
    from anyformer_course.pictures.published_figures import published_models

    kinds = ("encoder", "decoder", "encoder-decoder")
    if kind and kind not in kinds:
        raise ValueError(f"kind is {kind!r}; use one of {', '.join(kinds)}")
    if since and not re.fullmatch(r"\d{4}(-\d\d)?", since):
        raise ValueError(f"since is {quote(since)}; give a year or a month, such as 2018 or 2018-06")
    models = [m for m in published_models() if m.context and m.date >= since and kind in ("", m.kind)]
    if len(models) < 3:
        raise ValueError(f"fewer than three models have a published context since {since}")
    rows = [[m.name, m.date, int(m.context or 0), position_limit(af.spec(m.zoo)) if m.zoo else None] for m in models]
    slope = linear_regression([m.time for m in models], [math.log2(m.context or 1) for m in models]).slope
    longest = max(models, key=lambda m: m.context or 0)
    years = sorted({m.date[:4] for m in models})
    best = [max((m for m in models if m.date[:4] == year), key=lambda m: m.context or 0) for year in years]

    def draw() -> Any:
        figure, axes = new(1, 1, 9, 5)
        named = {(m.context, m.date[:4]): m for m in reversed(models)}.values()  # the first of each length and year
        for m in models:
            axes[0, 0].scatter(m.time, m.context, color=f"C{kinds.index(m.kind)}", s=18)
        for i, name in enumerate(kinds):
            axes[0, 0].scatter([], [], color=f"C{i}", label=name)
        axes[0, 0].set_yscale("log", base=2)
        axes[0, 0].set(title="published context length", ylabel="tokens")
        axes[0, 0].margins(x=0.1)
        axes[0, 0].grid(alpha=0.3)
        axes[0, 0].legend(loc="upper left")
        name_points(axes[0, 0], [(m.name, m.time, m.context or 0) for m in named])
        return figure

    return Shown(
        f"{longest.name} has the longest context, {longest.context:,.0f} tokens; a line through {len(models)} models "
        f"grows by a factor of {2**slope:.2f} per year.",
        [Table("the longest of each year", ("year", "tokens, published", "model"),
               [[m.date[:4], int(m.context or 0), m.name] for m in best]),
         Table("context", ("model", "date", "tokens, published", "tokens, limit of our description"), rows)],
        draw,
    )  # fmt: skip
