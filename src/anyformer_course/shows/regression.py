"""In-context regression: a Transformer reads pairs x, y of an unknown line and predicts the next y without training.

A small GPT-2 learns for a few seconds from random lines y = b x + noise. Then it reads your pairs. The best possible
answer is ridge regression (Bayes); nearest neighbours and least squares are compared too [Garg et al. 2022].
"""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer.evaluate.regression import least_squares, neighbours, ridge
from anyformer.look.figures import new
from anyformer.objectives.regress import Regress
from anyformer.recipes.regression import model as describe
from anyformer.specs.messages import amount, quote
from anyformer_course.shown import Shown, Table
from anyformer_course.words import read_number

CONTEXT, NOISE = 5, 0.3


def example(pairs: str = "1:2 -1:-2 0.5:1 -2:-4", *, query: float = 1.5, steps: int = 100, seed: int = 0) -> Shown:
    """Predict y at `query` after each of the `pairs` "x:y"; train for `steps` steps first."""
    try:
        points = [(read_number(x), read_number(y)) for x, y in (each.split(":") for each in pairs.split())]
    except ValueError:
        raise ValueError(f"pairs is {quote(pairs)}; write pairs of numbers such as '1:2 -1:-2'") from None
    if not 1 <= len(points) <= CONTEXT:
        raise ValueError(f"there are {len(points)} pairs; give 1 to {CONTEXT}")
    objective = Regress(width=1, context=CONTEXT, noise=NOISE)
    model: Any = af.build(describe(objective, n_layer=2, n_embd=32, n_head=2), seed=seed)
    draws, optimizer = torch.Generator().manual_seed(seed), torch.optim.AdamW(model.parameters(), fused=True)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 6e-3 * min(1, (step + 1) / 20) * (1 - step / steps)
        x, y = lines(144, draws)
        loss = (predict(model, x, y) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    estimators = {
        "model": lambda x, y: predict(model, x, y), "Bayes (ridge)": lambda x, y: ridge(x, y, NOISE**2),
        "least squares": least_squares, "3 neighbours": neighbours,
    }  # fmt: skip
    yours, errors = [], []
    with torch.no_grad():
        for count in range(len(points) + 1):
            x = torch.tensor([[[x] for x, _ in points[:count]] + [[query]] * (CONTEXT + 1 - count)])
            y = torch.tensor([[y for _, y in points[:count]] + [0.0] * (CONTEXT + 1 - count)])
            yours.append([count, *(float(each(x, y)[0, count]) for each in estimators.values())])
        x, y = lines(500, torch.Generator().manual_seed(seed + 1))
        for name, each in estimators.items():
            wrong = (each(x, y) - y).square()
            errors.append([name, *(float(wrong[:, n].mean()) for n in (0, 1, 2, 5))])

    def draw() -> Any:
        figure, axes = new(2, 1, 10, 3.8)
        axes[0, 0].scatter(*zip(*points, strict=True), label="your pairs")
        axes[0, 0].plot(query, yours[-1][1], "r*", markersize=12, label="the model's answer")
        axes[0, 0].set(xlabel="x", ylabel="y")
        axes[0, 0].legend()
        for name, *values in errors:
            axes[0, 1].plot((0, 1, 2, 5), values, "o-", label=name)
        axes[0, 1].set(xlabel="pairs read", ylabel="mean squared error", yscale="log")
        axes[0, 1].legend(fontsize=8)
        return figure

    return Shown(
        f"after {amount(len(points), 'pair')} the model predicts y = {yours[-1][1]:.2f} at x = {query:g}, Bayes "
        f"{yours[-1][2]:.2f}; on 500 new lines its error after 5 pairs is {errors[0][4]:.3f}, of Bayes "
        f"{errors[1][4]:.3f}, of neighbours {errors[3][4]:.3f}.",
        [
            Table(f"your pairs: prediction at x = {query:g}", ("pairs read", *estimators), yours),
            Table("500 new lines: mean squared error by number of pairs", ("estimator", "0", "1", "2", "5"),
                  errors),
        ],
        draw,
    )  # fmt: skip


def lines(number: int, draws: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points (number, N, 1) and values (number, N) of lines with random slopes, with noise."""
    slope, noise = (torch.randn(number, n, generator=draws) for n in (1, CONTEXT + 1))
    points = torch.randn(number, CONTEXT + 1, 1, generator=draws)
    return points, slope * points[..., 0] + NOISE * noise


def predict(model: Any, points: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return the prediction of each value from the pairs before it (B, N)."""
    return model(points=points, values=values).predictions
