"""Scaling laws: the loss of a family of sizes and budgets follows power laws, which predict the largest run.

L(N), L(D), L(C) [Kaplan et al. 2020] and L(N, D) = E + A / N^a + B / D^b [Hoffmann et al. 2022], fitted to all runs but
the largest; `anyformer scale` is the same with sizes, budgets and a description of your own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from anyformer.lab import scale
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.trials import Row, Trial

CLAIM = "the law that is fitted to the smaller runs predicts the loss of the largest within 3 %"
FORMS = {
    "tiny": Form(0.3, 0.2, {
        "widths": [16, 32], "tokens": [1024, 2048], "largest": [32, 4096], "batch": 8, "library": False
    }),
    "small": Form(2, 1, {
        "widths": [16, 32, 64], "tokens": [60_000, 120_000, 240_000], "largest": [96, 400_000], "batch": 16,
        "library": False,
    }),
    "full": Form(600, 4, {
        "widths": [64, 96, 128, 192, 256], "tokens": [4_000_000, 8_000_000, 16_000_000, 32_000_000],
        "largest": [320, 48_000_000], "batch": 32,
    }),
}  # fmt: skip
DIVERGES = True  # a training that does is a result here
trials, work, plot = scale.trials, scale.work, scale.plot


def minutes(left: Sequence[Trial], kind: str, jobs: int) -> float:
    """About how many minutes these trainings take: by their FLOPs, between those that the forms take (on a CPU, with
    two cores). Beyond the largest form, time grows as FLOPs do."""
    cost = [math.log(sum(trial.values["flops"] for trial in trials(**form.values))) for form in FORMS.values()]
    known = [math.log(form.minutes(kind)) for form in FORMS.values()]
    work = math.log(sum(trial.values["flops"] for trial in left))
    alone = math.exp(float(np.interp(work, cost, known)) + max(work - cost[-1], 0))
    return alone * (1 if kind == "cuda" else 2 / min(jobs, len(left)))


def claim(rows: Sequence[Row]) -> Verdict:
    found = scale.fit_results(rows)
    figures: dict[str, Any] = {"predicted": found.predicted, "measured": found.largest.L, "off by": found.error}
    figures |= {"decades of compute": found.decades, "E": found.law.E}
    for name, value in found.exponents.items():
        low, high = found.between[name]
        figures[f"exponent, {name}"] = f"{value:.3f} ({low:.3f} to {high:.3f}; published {scale.PUBLISHED[name]:.3f})"
    return Verdict(abs(found.error) <= 0.03, figures)
