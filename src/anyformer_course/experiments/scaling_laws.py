"""Scaling laws: over sizes and budgets the loss follows power laws, which predict a run of eight times the compute.

L(N), L(D), L(C) [Kaplan et al. 2020] and L(N, D) = E + A / N^a + B / D^b [Hoffmann et al. 2022] are fitted to all runs
but the largest, which has at least eight times the compute of the next; every seed has its own runs and its own law.
`anyformer scale` does the same with your sizes, budgets and description.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyformer.lab import scale
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.trials import Row, Trial
from anyformer_course.lab.runs import mean

CLAIM = (
    "with every seed, the law fitted to the smaller runs predicts the loss of the largest run, which has at least 8 "
    "times the compute of the next, within 3 %"
)
FORMS = {
    "tiny": Form(0.3, 0.2, {
        "widths": [16, 24], "tokens": [1024, 2048], "largest": [64, 8192], "batch": 8, "library": False
    }),
    "full": Form(600, 3, {
        "widths": [64, 96, 128, 192], "tokens": [2_000_000, 4_000_000, 8_000_000], "largest": [320, 16_000_000],
        "batch": 32, "seeds": 3,
    }),
}  # fmt: skip
DIVERGES = True  # divergence is a result of this experiment
LEAST = 8  # least compute of the largest run, in units of the next
work = scale.work


def trials(seeds: int = 1, data: str | None = None, **values: Any) -> list[Trial]:
    """Return the trials of `anyformer scale` with every seed, the most expensive first."""
    sizes = scale.trials(**values, data=data)
    return [
        Trial(f"{trial.name}-seed-{seed}", {**trial.values, "seed": seed}) for trial in sizes for seed in range(seeds)
    ]


def by_seed(rows: Sequence[Row]) -> dict[int, list[Row]]:
    """Return seed -> rows."""
    return {seed: [row for row in rows if row["seed"] == seed] for seed in dict.fromkeys(row["seed"] for row in rows)}


def compute_ahead(rows: Sequence[Row]) -> float:
    """Return the compute of the largest run in units of the next."""
    *_, second, largest = sorted({row["flops"] for row in rows})
    return largest / second


def claim(rows: Sequence[Row]) -> Verdict:
    fits = {seed: scale.fit_results(each) for seed, each in by_seed(rows).items()}
    results: dict[str, Any] = {}
    for seed, fit in fits.items():
        results |= {f"predicted, seed {seed}": fit.predicted, f"measured, seed {seed}": fit.largest.L}
        results[f"off by, seed {seed}"] = fit.error
    for name in scale.PUBLISHED:
        values = [fit.exponents[name] for fit in fits.values()]
        low = min(fit.between[name][0] for fit in fits.values())
        high = max(fit.between[name][1] for fit in fits.values())
        figure = f"{mean(values):.3f} ({low:.3f} to {high:.3f}; published {scale.PUBLISHED[name]:.3f})"
        results[f"exponent, {name}"] = figure
    ahead = compute_ahead(rows)
    results |= {"decades of compute": max(fit.decades for fit in fits.values()), "compute / the next run's": ahead}
    results["E"] = mean([fit.law.E for fit in fits.values()])
    return Verdict(ahead >= LEAST and max(abs(fit.error) for fit in fits.values()) <= 0.03, results)


def plot(rows: Sequence[Row]) -> Any:
    """Draw the runs and the law of the first seed."""
    return scale.plot(next(iter(by_seed(rows).values())))
