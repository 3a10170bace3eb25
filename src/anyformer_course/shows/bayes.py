"""In-context regression: the error of the best prediction after each pair, and of three simpler ones.

A task draws beta ~ N(0, I / d), x ~ N(0, I) and y = x beta + noise. After n pairs, Bayes is ridge regression with the
weight d noise^2. The first table compares a GPT-2 that we trained on 5.1 million tasks with Bayes, on the same 65,536
new tasks: stored results of the experiment in-context-regression.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from anyformer.evaluate.regression import least_squares, neighbours, ridge, smoother
from anyformer.look.figures import new
from anyformer.specs.messages import amount
from anyformer_course.results import judged_run, read
from anyformer_course.shown import Shown, Table


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
        "3 neighbours": neighbours(x, y), "softmax attention": smoother(x, y, 1.0),
    }  # fmt: skip
    errors = {name: (each - y).square().mean(0) for name, each in predictions.items()}
    steps = sorted({n for n in (0, 1, 2, width, width + 1, 10, 20, pairs) if n <= pairs})
    rows = [[n, *(float(each[n]) for each in errors.values())] for n in steps]
    trained, ratio, million = stored_errors(noise) if width == 5 else ([], None, None)

    def draw() -> Any:
        figure, axes = new(1, 1, 7, 3.8)
        for name, each in errors.items():
            axes[0, 0].plot(each.tolist(), label=name)
        if trained:
            axes[0, 0].plot(
                [n for n, *_ in trained],
                [error for _, error, _ in trained],
                "k*",
                markersize=9,
                label="trained GPT-2 (stored)",
            )
        axes[0, 0].axhline(noise**2, color="gray", linestyle=":", label=f"variance of the noise, {noise**2:g}")
        axes[0, 0].set(yscale="log", ylim=(0.8 * noise**2, 4 * (1 + noise**2)), xlabel="pairs in the prompt")
        axes[0, 0].set_ylabel("mean squared error")
        axes[0, 0].legend(frameon=False, fontsize=8)
        return figure

    last = {name: float(each[pairs]) for name, each in errors.items()}
    says = (
        f"On {tasks:,} new tasks the error after {amount(pairs, 'pair')} is {last['Bayes (ridge)']:.3f} for Bayes and "
        f"{last['3 neighbours']:.3f} for nearest neighbours; the variance of the noise is {noise**2:g}."
    )
    tables = [Table(f"mean squared error, d = {width}, noise with variance {noise**2:g}", ("pairs", *errors), rows)]
    if trained:
        n, ours, best = trained[-1]
        says = (
            f"After {n} pairs the trained GPT-2 has {ours / best:.4f} times the error of Bayes, and at most "
            f"{ratio:.4f} "
            f"times after any number of pairs from 1 to {n}. {says}"
        )
        compared = [[n, f"{ours:.4f}", f"{best:.4f}", f"{ours / best:.4f}"] for n, ours, best in trained]
        title = f"stored: GPT-2 after {million:g} million tasks, and Bayes, on the same new tasks"
        tables = [Table(title, ("pairs", "GPT-2", "Bayes", "ratio"), compared), *tables]
    return Shown(says, tables, draw)


def stored_errors(noise: float) -> tuple[list[tuple[int, float, float]], float | None, float | None]:
    """Return (pairs, error of the trained GPT-2, error of Bayes), the largest ratio and the millions of tasks."""
    run = judged_run(read("in-context-regression"))
    figures: dict[str, float] = (run or {}).get("figures") or {}
    found = []
    for n in range(1, 61):
        key = f"after {n} {'pair' if n == 1 else 'pairs'}, noise {noise:g}"
        if (ours := figures.get(f"error {key}")) and (best := figures.get(f"error of Bayes {key}")):
            found.append((n, ours, best))
    return found, figures.get(f"largest ratio to Bayes, noise {noise}"), figures.get("training tasks, millions")
