"""In-context regression: a Transformer that reads pairs x, y of a linear function predicts like the Bayes estimator.

The inputs are sequences x1 y1 ... xN yN, each of a different function. The prediction of every y is compared with ridge
regression on the pairs before it, which is the Bayes estimator [Garg et al. 2022], with least squares and with the
nearest neighbours. The full form is the recipe `regression` with about half of its steps, once per noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyformer.evaluate.regression import curves
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.objectives.regress import Regress
from anyformer.recipes import recipe
from anyformer.recipes.regression import model
from anyformer.specs.codec import override

CLAIM = "after any number of pairs, at least one, the mean squared error is within 5 % of the Bayes estimator's"
FORMS = {
    "tiny": Form(0.1, 0.1, {
        "noises": [0.5], "numbers": 2, "context": 3, "depth": 1, "width": 16, "steps": 3, "batch": 8, "asked": 64
    }),
    "small": Form(2, 0.5, {
        "noises": [0.5], "numbers": 2, "context": 10, "depth": 3, "width": 64, "steps": 1500, "batch": 64,
        "asked": 2**13,
    }),
    "full": Form(600, 7, {
        "noises": [0.25, 0.5, 1.0], "numbers": 5, "context": 40, "depth": 8, "width": 128, "steps": 10_000,
        "batch": 1024, "asked": 2**17,
    }),
}  # fmt: skip
BEST = 1.05  # largest allowed ratio of the model's error to the Bayes estimator's
trials = TrialGrid("noise-{noise:g}", noise="noises")


def work(values: Values, place: Place) -> list[Row]:
    steps, cuda = values["steps"], place.device.startswith("cuda")
    objective = Regress(width=values["numbers"], context=values["context"], noise=values["noise"])
    described = model(objective, n_layer=values["depth"], n_embd=values["width"])
    run = override(
        recipe("regression"),
        {
            "objective": objective,
            "model": described,
            "steps": steps,
            "batch.examples": values["batch"],
            "schedule.warmup": max(steps // 20, 1),
            "evaluate.every": steps,
            "keep.every": steps,
            "compile": cuda,
            "precision": "bf16" if cuda else "fp32",
        },
    )
    names = curves(place.train(run).model, objective, values["asked"], batch=min(4096, values["asked"]))
    return [{"pairs": pairs, **dict(zip(names, errors))} for pairs, errors in enumerate(zip(*names.values()))]


def ratios(rows: Sequence[Row], noise: float) -> list[tuple[int, float]]:
    """Return (pairs, ratio of the model's error to the Bayes estimator's), from one pair on."""
    return [(row["pairs"], row["model"] / row["bayes"]) for row in rows if row["noise"] == noise and row["pairs"]]


def claim(rows: Sequence[Row]) -> Verdict:
    results: dict[str, Any] = {}
    holds = True
    for noise in dict.fromkeys(row["noise"] for row in rows):
        pairs, worst = max(ratios(rows, noise), key=lambda each: each[1])
        results |= {f"error / Bayes at most, noise {noise:g}": worst, f"after pairs, noise {noise:g}": pairs}
        holds = holds and worst <= BEST
    return Verdict(holds, results)


def plot(rows: Sequence[Row]) -> Any:
    noises = list(dict.fromkeys(row["noise"] for row in rows))
    figure, axes = figures.new(len(noises) + 1, 1, 4.5 * (len(noises) + 1), 4)
    for axis, noise in zip(axes[0], noises):
        group = [row for row in rows if row["noise"] == noise]
        for name in ("neighbours", "least squares", "bayes", "model"):
            axis.plot([row["pairs"] for row in group], [row[name] for row in group], label=name)
        axis.set(xlabel="pairs seen", title=f"mean squared error, noise {noise:g}", ylim=(0, 2 * group[0]["bayes"]))
        axis.legend(frameon=False, fontsize=8)
        axes[0, -1].plot(*zip(*ratios(rows, noise)), label=f"noise {noise:g}")
    axes[0, -1].axhline(BEST, color="#777777", linestyle=":")
    axes[0, -1].set(xlabel="pairs seen", title="error of the model / of Bayes")
    axes[0, -1].legend(frameon=False, fontsize=8)
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure
