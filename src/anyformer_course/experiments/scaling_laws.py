"""Scaling laws: over sizes and budgets the loss follows power laws, which predict the largest run.

L(N), L(D), L(C) [Kaplan et al. 2020] and L(N, D) = E + A / N^a + B / D^b [Hoffmann et al. 2022] are fitted to all runs
but the largest. `anyformer scale` does the same with your sizes, budgets and description.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyformer.lab import scale
from anyformer.lab.experiment import Verdict
from anyformer.lab.trials import Row

CLAIM = "the law fitted to the smaller runs predicts the loss of the largest run within 3 %"
FORMS = scale.FORMS
DIVERGES = True  # divergence is a result of this experiment
trials, work, plot = scale.trials, scale.work, scale.plot


def claim(rows: Sequence[Row]) -> Verdict:
    fit = scale.fit_results(rows)
    figures: dict[str, Any] = {"predicted": fit.predicted, "measured": fit.largest.L, "off by": fit.error}
    figures |= {"decades of compute": fit.decades, "E": fit.law.E}
    for name, value in fit.exponents.items():
        low, high = fit.between[name]
        figures[f"exponent, {name}"] = f"{value:.3f} ({low:.3f} to {high:.3f}; published {scale.PUBLISHED[name]:.3f})"
    return Verdict(abs(fit.error) <= 0.03, figures)
