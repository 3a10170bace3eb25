"""Neighbours: whether in-context learning looks up the nearest examples depends on the training functions.

Sequences x1 y1 ... xN yN as in `in-context-regression`, of linear functions or of smooth functions (from a Gaussian
process). The model's prediction of each y is compared with the mean of the nearest neighbours, with a kernel smoother
(which attention computes if scores are distances), with ridge regression, and with the Bayes estimator. The number of
neighbours and the width of the kernel are chosen for the lowest error.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import torch

from anyformer.evaluate.regression import Estimator, estimators, neighbours, ridge, smoother
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.objectives.regress import Regress
from anyformer.recipes import recipe
from anyformer.recipes.regression import model
from anyformer.specs.codec import override
from anyformer_course.lab.runs import mean

CLAIM = (
    "with every seed, a model trained on smooth functions is closer to the nearest neighbours and the kernel smoother "
    "than to ridge regression, a model trained on linear functions the other way round, and both are closest to Bayes"
)
FORMS = {
    "tiny": Form(0.1, 0.1, {
        "numbers": 1, "context": 4, "depth": 1, "width": 16, "steps": 3, "batch": 8, "asked": 64, "seeds": 3
    }),
    "small": Form(2, 0.5, {
        "numbers": 1, "context": 16, "depth": 3, "width": 48, "steps": 600, "batch": 64, "asked": 2**11, "seeds": 3
    }),
    "full": Form(600, 4, {
        "numbers": 2, "context": 40, "depth": 6, "width": 128, "steps": 6000, "batch": 256, "asked": 2**14, "seeds": 3
    }),
}  # fmt: skip
SCALES = {"linear": None, "smooth": 0.7}  # length scale of the functions
NOISE = 0.2
COUNTS, WIDTHS = (1, 2, 3, 5, 8), (0.05, 0.1, 0.2, 0.4, 0.8)  # numbers of neighbours; widths of the kernel
trials = TrialGrid("{functions}-{seed}", functions=SCALES, seed="seeds")


def work(values: Values, place: Place) -> list[Row]:
    steps, cuda = values["steps"], place.device.startswith("cuda")
    scale = SCALES[values["functions"]]
    objective = Regress(width=values["numbers"], context=values["context"], noise=NOISE, scale=scale)
    run = override(
        recipe("regression"),
        {
            "objective": objective,
            "model": model(objective, n_layer=values["depth"], n_embd=values["width"]),
            "steps": steps,
            "batch.examples": values["batch"],
            "schedule.warmup": max(steps // 20, 1),
            "evaluate.every": steps,
            "evaluate.batches": 4,
            "keep.every": steps,
            "compile": cuda,
            "precision": "bf16" if cuda else "fp32",
            "seed": values["seed"],
        },
    )
    trainer = place.train(run)
    with trainer.eval_mode():
        return compare(objective, trainer.model, values["asked"])


def compare(objective: Regress, model: Any, count: int) -> list[Row]:
    """Return a row per number of pairs: the mean squared error of the model and of each estimator, and the mean squared
    distance of the estimator's predictions from the model's."""
    points, values = objective.draw(torch.arange(count, device=model.device)).values()
    predictions = model(points=points, values=values).predictions.double()
    points, values = points.double(), values.double()

    def best(each: Sequence[Estimator]) -> torch.Tensor:
        candidates = [estimator(points, values) for estimator in each]
        return min(candidates, key=lambda candidate: float((candidate - values).square().mean()))

    weight = objective.width * objective.noise**2
    estimates = {
        "neighbours": best([partial(neighbours, count=number) for number in COUNTS]),
        "smoother": best([partial(smoother, scale=width) for width in WIDTHS]),
        "ridge": ridge(points, values, weight),
        "bayes": estimators(objective)["bayes"](points, values),
    }
    errors = {"model": predictions, **estimates}
    rows: list[Row] = [
        {"name": name, "pairs": pairs, "error": error}
        for name, outputs in errors.items()
        for pairs, error in enumerate((outputs - values).square().mean(0).tolist())
    ]
    for row in rows:
        if row["name"] != "model":
            row["distance"] = float((estimates[row["name"]] - predictions)[:, row["pairs"]].square().mean())
    return rows


def half(rows: Sequence[Row], functions: str, name: str, what: str) -> list[float]:
    """Return the mean per seed over the second half of the pairs, where there are enough examples to look up."""
    group = [row for row in rows if (row["functions"], row["name"]) == (functions, name)]
    last = max(row["pairs"] for row in group)
    late = [row for row in group if row["pairs"] > last / 2]
    return [mean([row[what] for row in late if row["seed"] == seed]) for seed in sorted({row["seed"] for row in group})]


def claim(rows: Sequence[Row]) -> Verdict:
    results, holds = dict[str, float](), True
    for functions in SCALES:
        far = {name: half(rows, functions, name, "distance") for name in ("neighbours", "smoother", "ridge", "bayes")}
        results |= {f"{functions}: distance from {name}": mean(each) for name, each in far.items()}
        results |= {
            f"{functions}: error, {name}": mean(half(rows, functions, name, "error")) for name in ("model", *far)
        }
        for near, smooth, line, bayes in zip(*far.values(), strict=True):
            alike = line < min(near, smooth) if functions == "linear" else line > max(near, smooth)
            holds = holds and alike and bayes <= min(near, smooth, line)
    return Verdict(holds, results)


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 2, 11, 8)
    for (number, functions), (which, what) in product(enumerate(SCALES), enumerate(("error", "distance"))):
        axis = axes[which, number]
        for name in dict.fromkeys(row["name"] for row in rows if what in row):
            group = [row for row in rows if (row["functions"], row["name"]) == (functions, name)]
            pairs = sorted({row["pairs"] for row in group})
            axis.plot(pairs, [mean([row[what] for row in group if row["pairs"] == n]) for n in pairs], label=name)
        title = "mean squared error" if what == "error" else "squared distance from the model's predictions"
        axis.set(xlabel="pairs seen", yscale="log", title=f"{functions} functions: {title}")
        axis.legend(frameon=False, fontsize=7)
        axis.grid(alpha=0.3)
    return figure
