"""Larger learn from fewer: a larger model needs fewer tokens to reach a loss, and the best size grows with compute.

Models of several sizes read the same texts [Kaplan et al. 2020, figure 2]. Their loss curves give the number of tokens
that each needs to reach the final loss of the smallest model, and for every amount of compute the size and number of
tokens with the lowest loss, N_opt(C) and D_opt(C), compared with the published laws. The learning rate decays along
each run, so for all sizes a loss within a run is higher than the loss of a run that is planned to end there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from anyformer.lab import scale
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.scale import Point, fit_power
from anyformer.lab.training import LEARNED
from anyformer.lab.trials import Row, Trial
from anyformer.look import figures
from anyformer.planning.compute import chinchilla, kaplan
from anyformer_course.lab.runs import mean

CLAIM = (
    "with every seed, each larger model needs fewer tokens to reach the final loss of the smallest model; the best "
    "size grows with compute"
)
FORMS = {
    "tiny": Form(0.3, 0.2, {"widths": [16, 32], "tokens": 8192, "batch": 8, "library": False, "seeds": 3}),
    "full": Form(600, 4, {
        "widths": [64, 128, 192, 256], "tokens": 16_000_000, "batch": 32, "library": True, "seeds": 3
    }),
}  # fmt: skip
work = scale.work


def trials(
    widths: list[int], tokens: int, batch: int, library: bool, seeds: int, data: str | None = None
) -> list[Trial]:
    """Return a trial per size and seed, all with the same number of tokens."""
    sizes = scale.trials(widths=widths, tokens=[tokens], batch=batch, data=data, library=library)
    return [
        Trial(f"{trial.name}-{seed}", {**trial.values, "seed": seed, "evaluations": 12})
        for trial in sizes
        for seed in range(seeds)
    ]


def curves(rows: Sequence[Row]) -> dict[float, dict[int, list[Point]]]:
    """Return size -> seed -> a point per evaluation, smallest size first."""
    runs: dict[float, dict[int, list[Point]]] = {}
    for row in sorted(rows, key=lambda row: row["parameters"]):
        share = row["step"] / row["steps"]
        point = Point(row["parameters"], row["tokens"] * share, row["flops"] * share, row["loss"])
        runs.setdefault(row["parameters"], {}).setdefault(row["seed"], []).append(point)
    return runs


def tokens_needed(curve: Sequence[Point], loss: float) -> float:
    """Return the number of tokens to reach `loss` (interpolated by logarithm), or infinity if it is never reached."""
    if loss >= curve[0].L:
        return curve[0].D
    for before, after in pairwise(curve):
        if loss >= after.L:
            share = (before.L - loss) / (before.L - after.L)
            return float(before.D * (after.D / before.D) ** share)
    return float("inf")


def best_sizes(rows: Sequence[Row], number: int = 24) -> list[Point]:
    """Return the size with the lowest loss (interpolated, mean over seeds) for amounts of compute that the curves of at
    least two sizes cover."""
    means = [
        [Point(N, points[0].D, points[0].C, mean([point.L for point in points])) for points in zip(*seeds.values())]
        for N, seeds in curves(rows).items()
    ]
    starts, ends = [sorted(curve[i].C for curve in means)[at] for i, at in ((0, 1), (-1, -2))]
    best = []
    for C in np.geomspace(starts, ends, number).tolist() if starts < ends else []:
        known = [curve for curve in means if curve[0].C <= C <= curve[-1].C]
        losses = [np.interp(np.log(C), np.log([p.C for p in curve]), [p.L for p in curve]) for curve in known]
        loss, curve = min(zip(losses, known), key=lambda each: each[0])
        best.append(Point(curve[0].N, curve[0].D * C / curve[0].C, C, float(loss)))
    return best


def needed(rows: Sequence[Row]) -> dict[float, list[float]]:
    """Return size -> tokens that each seed needs to reach the final loss of the smallest size with the same seed."""
    every = curves(rows)
    goals = {seed: curve[-1].L for seed, curve in next(iter(every.values())).items()}
    return {N: [tokens_needed(curve, goals[seed]) for seed, curve in seeds.items()] for N, seeds in every.items()}


def claim(rows: Sequence[Row]) -> Verdict:
    tokens, best = needed(rows), best_sizes(rows)
    fewer = all(a > b for small, large in pairwise(tokens.values()) for a, b in zip(small, large, strict=True))
    smallest = next(iter(curves(rows).values()))
    worst = max(curve[-1].L for curve in smallest.values()) / rows[0]["guessing"]
    grows = len(best) > 1 and best[-1].N > best[0].N
    results: dict[str, Any] = {f"tokens needed, {N:,.0f} parameters": mean(each) for N, each in tokens.items()}
    results |= {f"loss at the end, {N:,.0f} parameters": mean([curve[-1].L for curve in seeds.values()])
              for N, seeds in curves(rows).items()}  # fmt: skip
    results["smallest size: largest loss / loss of guessing"] = worst
    if grows:
        results["exponent of N_opt(C)"] = -fit_power([p.C for p in best], [p.N for p in best]).a
        results["exponent of D_opt(C)"] = -fit_power([p.C for p in best], [p.D for p in best]).a
        results |= {f"best size at {point.C:.2g} FLOPs": point.N for point in (best[0], best[-1])}
    return Verdict(fewer and grows, results, worst <= LEARNED)


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(3, 1, 15, 4.5)
    for number, (N, seeds) in enumerate(curves(rows).items()):
        for i, curve in enumerate(seeds.values()):
            label = None if i else f"{N:,.0f}"
            millions = [p.D / 1e6 for p in curve]
            axes[0, 0].plot(millions, [p.L for p in curve], color=f"C{number}", linewidth=0.8, label=label)
    axes[0, 0].set(xlabel="million tokens", title="loss by tokens")
    axes[0, 0].legend(frameon=False, fontsize=8, title="parameters")
    best = best_sizes(rows)
    for axis, letter in ((axes[0, 1], "N"), (axes[0, 2], "D")):
        axis.plot([p.C for p in best], [getattr(p, letter) for p in best], "ko", markersize=4, label="here")
        for law in (kaplan, chinchilla):
            predicted = [law(point.C) for point in best]
            values = [each.parameters if letter == "N" else each.tokens for each in predicted]
            axis.plot([p.C for p in best], values, label=predicted[0].law if predicted else None)
        axis.set(xlabel="FLOPs", title=f"{letter}_opt(C)")
        axis.legend(frameon=False, fontsize=8)
    for axis in axes.flat:
        axis.set(xscale="log", yscale="log")
        axis.grid(alpha=0.3, which="both")
    axes[0, 0].xaxis.set_minor_formatter("{x:g}")
    axes[0, 0].yaxis.set_minor_formatter("{x:g}")
    return figure
