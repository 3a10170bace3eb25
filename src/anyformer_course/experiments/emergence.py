"""Emergence: exact answers appear at a certain size, while the loss falls smoothly.

Decoders of growing size learn to add numbers. Measured by exact answers, the ability appears suddenly [Wei et al.
2022]; measured by the probability of the answer's digits, it grows gradually [Schaeffer et al. 2023].
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from anyformer.counting import count
from anyformer.data import Data
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer_course.lab.runs import mean, writer

CLAIM = (
    "from the smallest to the largest size, in the mean over seeds, exact answers rise from below 10 % to above 60 %; "
    "their largest step between two sizes is a larger share of the total change than the largest step of the loss, in "
    "the mean over seeds and with at least three quarters of the seeds"
)
FORMS = {
    "tiny": Form(0.2, 0.1, {"widths": [8, 16], "steps": 2, "batch": 4, "base": 10, "digits": 1, "seeds": 1}),
    "full": Form(
        360, 3, {"widths": [4, 8, 16, 32, 64], "steps": 2500, "batch": 256, "base": 10, "digits": 3, "seeds": 8}
    ),
}
NUMBER, HELD = 200_000, 500  # generated sums, held-out sums
trials = TrialGrid(
    "width-{width}-{seed}",
    width="widths",
    seed="seeds",
    derive=lambda each: {"parameters": count(model_spec(each["width"])).parameters},
)


def model_spec(width: int) -> Any:
    return writer(width, 2, max(width // 16, 1), 64, scaled=True)


def sums(base: int, digits: int, number: int, seed: int) -> list[str]:
    """Return lines of equal length such as "47+85=231". The answer is reversed: its last digit is first, as in addition
    by hand. In a smaller base there is less to learn."""
    draw = np.random.default_rng(seed)

    def to_base(value: int, width: int) -> str:
        return np.base_repr(value, base).zfill(width)

    pairs = draw.integers(0, base**digits, (number, 2)).tolist()
    return [f"{to_base(a, digits)}+{to_base(b, digits)}={to_base(a + b, digits + 1)[::-1]}" for a, b in pairs]


def work(values: Values, place: Place) -> list[Row]:
    base, digits = values["base"], values["digits"]
    asked = sums(base, digits, HELD, 1)

    def others() -> list[str]:
        held = set(asked) if digits > 1 else set()
        return [line for line in sums(base, digits, NUMBER if values["steps"] > 100 else 500, 0) if line not in held]

    run = training_run(
        "emergence",
        model_spec(values["width"]),
        Data(train=place.texts("sums", others)),
        place.device,
        steps=values["steps"],
        batch=values["batch"],
        length=64,
        lr=min(0.3 / values["width"], 8e-3),
        seed=values["seed"],
    )
    trainer = place.train(run)
    ids = torch.tensor([trainer.tokenizer.encode(line) for line in asked], device=trainer.device)
    with trainer.eval_mode():
        logits = trainer.model(input_ids=ids).logits[:, -digits - 2 : -1].float()
    answer = ids[:, -digits - 1 :]
    right = logits.argmax(-1) == answer
    return [
        {
            "answers": float(right.all(-1).float().mean()),
            "digit": float(right.float().mean()),
            "loss": float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), answer.flatten())),
        }
    ]


def by_size(rows: Sequence[Row], what: str) -> dict[int, float]:
    """Return width -> mean over seeds."""
    return {width: mean([row[what] for row in rows if row["width"] == width]) for width in sizes(rows)}


def sizes(rows: Sequence[Row]) -> dict[int, int]:
    """Return width -> parameters."""
    return {row["width"]: row["parameters"] for row in rows}


def largest(values: Sequence[float]) -> float:
    """Return the largest step from one size to the next as a share of the total change."""
    whole = values[-1] - values[0]
    return max((after - before) / whole for before, after in pairwise(values)) if whole else 0.0


def is_sharper(rows: Sequence[Row]) -> bool:
    """Whether the largest step of exact answers is a larger share of the total change than the largest step of the
    loss."""
    answers, loss = (list(by_size(rows, what).values()) for what in ("answers", "loss"))
    return largest(answers) > largest(loss)


def claim(rows: Sequence[Row]) -> Verdict:
    means = by_size(rows, "answers")
    answers, loss = list(means.values()), list(by_size(rows, "loss").values())
    steps = {"largest step in exact answers": largest(answers), "largest step in the loss": largest(loss)}
    results: dict[str, Any] = {f"exact answers, width {width}": value for width, value in means.items()}
    for width in means:
        each = [row["answers"] for row in rows if row["width"] == width]
        results[f"exact answers by seed, width {width}"] = ", ".join(f"{value:.2f}" for value in each)
    seeds = list(dict.fromkeys(row["seed"] for row in rows))
    sharper = [seed for seed in seeds if is_sharper([row for row in rows if row["seed"] == seed])]
    steps["seeds in which exact answers have the larger step"] = len(sharper)
    holds = answers[0] < 0.1 and answers[-1] > 0.6 and largest(answers) > largest(loss)
    return Verdict(holds and len(sharper) >= 0.75 * len(seeds), {**results, **steps})


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 1, 11, 4)
    shown = (("answers", "exact answers", 0), ("digit", "digits", 0), ("loss", None, 1))
    for number, (what, name, column) in enumerate(shown):
        means, color = by_size(rows, what), f"C{number}"
        axes[0, column].plot(list(sizes(rows).values()), list(means.values()), color=color, label=name)
        axes[0, column].plot([row["parameters"] for row in rows], [row[what] for row in rows], "o", color=color)
    axes[0, 0].set(xscale="log", xlabel="parameters", title="accuracy: one point per seed, and the mean")
    axes[0, 0].legend(frameon=False)
    axes[0, 1].set(xscale="log", xlabel="parameters", title="loss of the answer's digits (nats)")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure
