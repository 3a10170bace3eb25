"""Published scores on GLUE and SuperGLUE, by year, parameters and training compute.

Compute is the published figure. If none was published, it is 6 N D (3 N D for an encoder-decoder). Parameters are
listed as published and, if the architecture is in the zoo, as we count them.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table

# the slide's leaderboard of GLUE, January 2021 (gluebenchmark.com)
LEADERBOARD = (("DeBERTa / TuringNLRv4", 90.8), ("MacALBERT + DKM", 90.7), ("StructBERT + TAPT", 90.6),
               ("ALBERT + DAAF + NAS", 90.6), ("ERNIE", 90.4), ("T5", 90.3))  # fmt: skip


def example(test: str = "glue", *, count: bool = True) -> Shown:
    """List the published scores of a `test`, "glue" or "superglue". `count`: compare parameters with our counts."""
    from anyformer_course.pictures.points import name_points
    from anyformer_course.pictures.published_figures import HUMANS, our_count, published_models

    if test not in HUMANS:
        raise ValueError(f"no test is called {test!r}; use 'glue' or 'superglue'")
    models = [model for model in published_models() if getattr(model, test) is not None]
    compute = [model.compute or model.estimate for model in models]
    scores = [getattr(model, test) for model in models]
    rows = [
        [model.name, model.date, model.parameters, our_count(model).parameters if count and model.zoo else None,
         each, score]
        for model, each, score in zip(models, compute, scores, strict=True)
    ]  # fmt: skip
    pairs = [(math.log10(each), score) for each, score in zip(compute, scores, strict=True) if each]
    best = max(models, key=lambda model: getattr(model, test))
    oldest = min(models, key=lambda model: model.date)
    fall = (100 - getattr(oldest, test)) / (100 - getattr(best, test))
    first = next((model for model in models if getattr(model, test) > HUMANS[test]), None)

    def draw() -> Any:
        figure, axes = new(2, 1, 12, 4.5)
        named = []
        for axis, xs in ((axes[0, 0], [model.time for model in models]), (axes[0, 1], compute)):
            points = [(model.name, x, score) for model, x, score in zip(models, xs, scores, strict=True) if x]
            axis.scatter([x for _, x, _ in points], [score for _, _, score in points], s=20, color="C0")
            axis.margins(x=0.2)
            axis.axhline(HUMANS[test], color="gray", linestyle=":", label="humans")
            axis.grid(alpha=0.3)
            named.append((axis, points))
        axes[0, 0].set(title=f"{test} by year", ylabel="score on the test set")
        axes[0, 0].locator_params(axis="x", nbins=4)
        axes[0, 0].legend()
        axes[0, 1].set(title=f"{test} by training compute", xlabel="FLOPs", xscale="log")
        for axis, points in named:
            name_points(axis, points)
        return figure

    return Shown(
        f"In the first table, {best.name} has the best score, {getattr(best, test)}; humans have {HUMANS[test]}"
        + (f", which {first.name} ({first.date}) was the first to pass" if first else "")
        + f". Its error, 100 - score, is {fall:.1f} times smaller than {oldest.name}'s."
        + f" Score and log10 of the compute correlate by {correlation(pairs):.2f} ({len(pairs)} models).",
        [Table(f"{test}: published scores", ("model", "date", "published N", "our count",
                                             "training FLOPs", "score, published"), rows),
         *([Table("leaderboard of January 2021, published", ("model", "score"), [list(row) for row in LEADERBOARD])]
           if test == "glue" else [])],
        draw,
    )  # fmt: skip


def correlation(pairs: list[tuple[float, float]]) -> float:
    return statistics.correlation(*zip(*pairs)) if len(pairs) > 2 else math.nan
