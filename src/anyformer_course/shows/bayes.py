"""In-context regression: the error of the best prediction after each pair, and of three simpler ones.

A task draws beta ~ N(0, I / d), x ~ N(0, I) and y = x beta + noise. After n pairs, Bayes is ridge regression with the
weight d noise^2. The last column is the error of a GPT-2 that we trained on 5.1 million tasks
(docs/results/regression.md), on its own test tasks.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from anyformer.evaluate.regression import least_squares, neighbours, ridge, smoother
from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table

# noise: {pairs: error of the trained GPT-2}
TRAINED = {0.25: {1: 0.8854, 10: 0.1295, 40: 0.0717}, 0.5: {1: 1.1056, 10: 0.4448, 40: 0.2849},
           1.0: {1: 1.9102, 10: 1.4370, 40: 1.1232}}  # fmt: skip


def example(noise: float = 0.5, *, width: int = 5, pairs: int = 40, tasks: int = 4000, seed: int = 0) -> Shown:
    """Draw `tasks` tasks with x of `width` numbers, and measure the errors after 0 to `pairs` pairs."""
    if not 0 < noise <= 10 or not 1 <= width <= 20 or not 2 <= pairs <= 60 or not 10 <= tasks <= 20000:
        raise ValueError("noise: above 0, at most 10; width: 1 to 20; pairs: 2 to 60; tasks: 10 to 20000")
    draws = torch.Generator().manual_seed(seed)
    beta = torch.randn(tasks, width, 1, generator=draws, dtype=torch.float64) / math.sqrt(width)
    x = torch.randn(tasks, pairs + 1, width, generator=draws, dtype=torch.float64)
    y = (x @ beta)[..., 0] + noise * torch.randn(tasks, pairs + 1, generator=draws, dtype=torch.float64)
    predictions = {
        "Bayes (ridge)": ridge(x, y, width * noise**2), "least squares": least_squares(x, y),
        "3 nearest neighbours": neighbours(x, y), "softmax attention to x": smoother(x, y, 1.0),
    }  # fmt: skip
    errors = {name: (each - y).square().mean(0) for name, each in predictions.items()}
    steps = sorted({n for n in (0, 1, 2, width, width + 1, 10, 20, pairs) if n <= pairs})
    trained = TRAINED.get(noise, {}) if width == 5 else {}
    rows = [[n, *(float(each[n]) for each in errors.values()), trained.get(n)] for n in steps]

    def draw() -> Any:
        figure, axes = new(1, 1, 7, 3.8)
        for name, each in errors.items():
            axes[0, 0].plot(each.tolist(), label=name)
        if trained:
            axes[0, 0].plot(list(trained), list(trained.values()), "k*", markersize=9, label="trained GPT-2 (stored)")
        axes[0, 0].axhline(noise**2, color="gray", linestyle=":", label="noise")
        axes[0, 0].set(yscale="log", ylim=(0.8 * noise**2, 4 * (1 + noise**2)), xlabel="pairs in the prompt")
        axes[0, 0].set_ylabel("mean squared error")
        axes[0, 0].legend(frameon=False, fontsize=8)
        return figure

    last = {name: float(each[pairs]) for name, each in errors.items()}
    return Shown(
        f"After {pairs} pairs the error of Bayes is {last['Bayes (ridge)']:.3f}, close to the noise of {noise**2:.3f}; "
        f"of nearest neighbours {last['3 nearest neighbours']:.3f}.",
        [Table(f"mean squared error, d = {width}, noise {noise:g}", ("pairs", *errors, "trained GPT-2, stored"), rows)],
        draw,
    )
