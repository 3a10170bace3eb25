"""Larger learn from fewer: a larger model needs fewer tokens to reach a loss, and the best size grows with compute.

Sizes of one family read the same texts [Kaplan et al. 2020, figure 2]. From their curves follow the tokens each needs
for the loss that the smallest ends with, and the size and number of tokens with the least loss for every amount of
compute, N_opt(C) and D_opt(C), beside the published ones. The rates fall along each run, so a loss on the way is
higher than that of a run planned to end there, for all sizes alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from anyformer.lab import scale
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.runs import mean
from anyformer.lab.scale import Point, fit_power
from anyformer.lab.trials import Row, Trial
from anyformer.look import figures
from anyformer.planning.compute import chinchilla, kaplan

CLAIM = (
    "the tokens needed for the loss that the smallest model ends with fall with every larger size, with every seed, "
    "and the best size grows with compute"
)
FORMS = {
    "tiny": Form(0.3, 0.2, {"widths": [16, 32], "tokens": 8192, "batch": 8, "library": False, "seeds": 3}),
    "small": Form(2, 0.5, {"widths": [16, 32, 64], "tokens": 240_000, "batch": 16, "library": False, "seeds": 3}),
    "full": Form(600, 4, {
        "widths": [64, 128, 192, 256], "tokens": 16_000_000, "batch": 32, "library": True, "seeds": 3
    }),
}  # fmt: skip
work = scale.work


def trials(
    widths: list[int], tokens: int, batch: int, library: bool, seeds: int, data: str | None = None
) -> list[Trial]:
    """Every size with every seed, all with the same number of tokens."""
    sizes = scale.trials(widths=widths, tokens=[tokens], batch=batch, data=data, library=library)
    return [
        Trial(f"{trial.name}-{seed}", {**trial.values, "seed": seed, "evaluations": 12})
        for trial in sizes
        for seed in range(seeds)
    ]


def curves(rows: Sequence[Row]) -> dict[float, dict[int, list[Point]]]:
    """size -> seed -> the run at each evaluation, the smallest size first"""
    found: dict[float, dict[int, list[Point]]] = {}
    for row in sorted(rows, key=lambda row: row["parameters"]):
        share = row["step"] / row["steps"]
        point = Point(row["parameters"], row["tokens"] * share, row["flops"] * share, row["loss"])
        found.setdefault(row["parameters"], {}).setdefault(row["seed"], []).append(point)
    return found


def tokens_needed(curve: Sequence[Point], loss: float) -> float:
    """The tokens after which the loss is first this low, between evaluations by the logarithm; infinite if never."""
    if loss >= curve[0].L:
        return curve[0].D
    for before, after in pairwise(curve):
        if loss >= after.L:
            share = (before.L - loss) / (before.L - after.L)
            return float(before.D * (after.D / before.D) ** share)
    return float("inf")


def best_sizes(rows: Sequence[Row], number: int = 24) -> list[Point]:
    """For amounts of compute that at least two sizes have curves for: the size with the least loss, the mean of its
    seeds, interpolated."""
    means = [
        [Point(N, points[0].D, points[0].C, mean([point.L for point in points])) for points in zip(*seeds.values())]
        for N, seeds in curves(rows).items()
    ]
    starts, ends = [sorted(curve[i].C for curve in means)[at] for i, at in ((0, 1), (-1, -2))]
    found = []
    for C in np.geomspace(starts, ends, number).tolist() if starts < ends else []:
        known = [curve for curve in means if curve[0].C <= C <= curve[-1].C]
        losses = [np.interp(np.log(C), np.log([p.C for p in curve]), [p.L for p in curve]) for curve in known]
        loss, curve = min(zip(losses, known), key=lambda each: each[0])
        found.append(Point(curve[0].N, curve[0].D * C / curve[0].C, C, float(loss)))
    return found


def needed(rows: Sequence[Row]) -> dict[float, list[float]]:
    """size -> the tokens that each seed needs for the last loss of the smallest size with that seed"""
    every = curves(rows)
    goals = {seed: curve[-1].L for seed, curve in next(iter(every.values())).items()}
    return {N: [tokens_needed(curve, goals[seed]) for seed, curve in seeds.items()] for N, seeds in every.items()}


def claim(rows: Sequence[Row]) -> Verdict:
    tokens, best = needed(rows), best_sizes(rows)
    fewer = all(a > b for small, large in pairwise(tokens.values()) for a, b in zip(small, large, strict=True))
    grows = len(best) > 1 and best[-1].N > best[0].N
    found: dict[str, Any] = {f"tokens needed, {N:,.0f} parameters": mean(each) for N, each in tokens.items()}
    found |= {f"loss at the end, {N:,.0f} parameters": mean([curve[-1].L for curve in seeds.values()])
              for N, seeds in curves(rows).items()}  # fmt: skip
    if grows:
        found["exponent of N_opt(C)"] = -fit_power([p.C for p in best], [p.N for p in best]).a
        found["exponent of D_opt(C)"] = -fit_power([p.C for p in best], [p.D for p in best]).a
        found |= {f"best size at {point.C:.2g} FLOPs": point.N for point in (best[0], best[-1])}
    return Verdict(fewer and grows, found)


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(3, 1, 15, 4.5)
    for number, (N, seeds) in enumerate(curves(rows).items()):
        for i, curve in enumerate(seeds.values()):
            label = None if i else f"{N:,.0f}"
            axes[0, 0].plot([p.D for p in curve], [p.L for p in curve], color=f"C{number}", linewidth=0.8, label=label)
    axes[0, 0].set(xlabel="tokens", title="loss by tokens")
    axes[0, 0].legend(frameon=False, fontsize=8, title="parameters")
    best = best_sizes(rows)
    for axis, letter in ((axes[0, 1], "N"), (axes[0, 2], "D")):
        axis.plot([p.C for p in best], [getattr(p, letter) for p in best], "ko", markersize=4, label="here")
        for law in (kaplan, chinchilla):
            said = [law(point.C) for point in best]
            values = [each.parameters if letter == "N" else each.tokens for each in said]
            axis.plot([p.C for p in best], values, label=said[0].law if said else None)
        axis.set(xlabel="FLOPs", title=f"{letter}_opt(C)")
        axis.legend(frameon=False, fontsize=8)
    for axis in axes.flat:
        axis.set(xscale="log", yscale="log")
        axis.grid(alpha=0.3, which="both")
    return figure
