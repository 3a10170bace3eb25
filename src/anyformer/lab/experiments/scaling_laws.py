"""Scaling laws: over sizes and budgets the loss follows power laws, which predict the largest run.

L(N), L(D), L(C) [Kaplan et al. 2020] and L(N, D) = E + A / N^a + B / D^b [Hoffmann et al. 2022] are fitted to all runs
but the largest. `anyformer scale` does the same with your sizes, budgets and description.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from anyformer.lab import scale
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.trials import Row, Trial

CLAIM = "the law fitted to the smaller runs predicts the loss of the largest run within 3 %"
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
DIVERGES = True  # divergence is a result of this experiment
trials, work, plot = scale.trials, scale.work, scale.plot


def minutes(remaining: Sequence[Trial], kind: str, jobs: int) -> float:
    """Estimate the minutes of these trainings from their FLOPs, by interpolation between the forms (on a CPU, with two
    cores). Beyond the largest form, time is proportional to FLOPs."""
    cost = [math.log(sum(trial.values["flops"] for trial in trials(**form.values))) for form in FORMS.values()]
    known = [math.log(form.minutes(kind)) for form in FORMS.values()]
    work = math.log(sum(trial.values["flops"] for trial in remaining))
    total = math.exp(float(np.interp(work, cost, known)) + max(work - cost[-1], 0))
    return total * (1 if kind == "cuda" else 2 / min(jobs, len(remaining)))


def claim(rows: Sequence[Row]) -> Verdict:
    fit = scale.fit_results(rows)
    figures: dict[str, Any] = {"predicted": fit.predicted, "measured": fit.largest.L, "off by": fit.error}
    figures |= {"decades of compute": fit.decades, "E": fit.law.E}
    for name, value in fit.exponents.items():
        low, high = fit.between[name]
        figures[f"exponent, {name}"] = f"{value:.3f} ({low:.3f} to {high:.3f}; published {scale.PUBLISHED[name]:.3f})"
    return Verdict(abs(fit.error) <= 0.03, figures)
