"""Emergence: whole answers appear at a certain size, while the loss behind them falls smoothly.

Decoders of growing size learn to add numbers. Counted by whole answers, the ability is missing and then there [Wei et
al. 2022]; counted by the probability of the answer's digits, it comes bit by bit [Schaeffer et al. 2023].
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
from anyformer.lab.experiments._runs import training, writer
from anyformer.lab.trials import Place, Row, Trial, Values
from anyformer.look import figures

CLAIM = (
    "from the smallest to the largest, whole answers go from below 10 % to above 60 %, and the largest step of one "
    "size to the next is a larger share of that than it is of the fall of the loss"
)
FORMS = {
    "tiny": Form(0.2, 0.1, {"widths": [8, 16], "steps": 2, "batch": 4, "digits": 1}),
    "small": Form(2, 0.5, {"widths": [8, 16, 32, 64], "steps": 1200, "batch": 24, "digits": 2}),
    "full": Form(120, 3.5, {"widths": [8, 12, 16, 24, 32, 64, 128, 256], "steps": 4000, "batch": 64, "digits": 3}),
}
NUMBER, HELD = 60000, 500


def trials(widths: list[int], steps: int, batch: int, digits: int) -> list[Trial]:
    same = {"steps": steps, "batch": batch, "digits": digits}
    return [
        Trial(f"width-{width}", {"width": width, "parameters": count(described(width)).parameters, **same})
        for width in widths
    ]


def described(width: int) -> Any:
    return writer(width, 2, max(width // 16, 1), 64)


def sums(digits: int, number: int, seed: int) -> list[str]:
    """Lines such as "47+85=231", of equal length; the answer from its last digit on, as it is added up."""
    draw = np.random.default_rng(seed)
    pairs = draw.integers(0, 10**digits, (number, 2)).tolist()
    return [f"{a:0{digits}}+{b:0{digits}}={f'{a + b:0{digits + 1}}'[::-1]}" for a, b in pairs]


def work(values: Values, place: Place) -> list[Row]:
    digits = values["digits"]
    asked = sums(digits, HELD, 1)

    def others() -> list[str]:
        held = set(asked) if digits > 1 else set()
        return [line for line in sums(digits, NUMBER if values["steps"] > 100 else 500, 0) if line not in held]

    run = training(
        "emergence", described(values["width"]), Data(train=place.texts("sums", others)), place.device,
        steps=values["steps"], batch=values["batch"], length=64, lr=min(0.3 / values["width"], 8e-3),
    )  # fmt: skip
    trainer = place.train(run)
    ids = torch.tensor([trainer.tokenizer.encode(line) for line in asked], device=trainer.device)
    with trainer.evaluating():
        logits = trainer.model(input_ids=ids).logits[:, -digits - 2 : -1].float()
    answer = ids[:, -digits - 1 :]
    right = logits.argmax(-1) == answer
    return [{
        "answers": float(right.all(-1).float().mean()), "digit": float(right.float().mean()),
        "loss": float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), answer.flatten())),
    }]  # fmt: skip


def largest(values: Sequence[float]) -> float:
    """The largest step from one size to the next, as a share of the whole way."""
    whole = values[-1] - values[0]
    return max((after - before) / whole for before, after in pairwise(values)) if whole else 0.0


def claim(rows: Sequence[Row]) -> Verdict:
    answers, loss = [row["answers"] for row in rows], [row["loss"] for row in rows]
    steps = {"largest step in whole answers": largest(answers), "largest step in the loss": largest(loss)}
    found = {f"whole answers, width {row['width']}": row["answers"] for row in rows}
    holds = answers[0] < 0.1 and answers[-1] > 0.6 and largest(answers) > largest(loss)
    return Verdict(holds, {**found, **steps})


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 1, 11, 4)
    sizes = [row["parameters"] for row in rows]
    axes[0, 0].plot(sizes, [row["answers"] for row in rows], marker="o", label="whole answers")
    axes[0, 0].plot(sizes, [row["digit"] for row in rows], marker="o", label="digits")
    axes[0, 0].set(xscale="log", xlabel="parameters", title="right")
    axes[0, 0].legend(frameon=False)
    axes[0, 1].plot(sizes, [row["loss"] for row in rows], marker="o", color="C2")
    axes[0, 1].set(xscale="log", xlabel="parameters", title="loss of the answer's digits (nats)")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure
