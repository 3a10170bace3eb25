"""Few-shot: examples in the text help, and help larger models more.

Every text has a secret shift: in each pair of letters, the second is the first shifted by this number of letters in the
alphabet. The pairs are the shots, and only earlier pairs show the shift. Measured is the accuracy of the second letter
of a pair by the number of pairs before it and by the size of the model [Brown et al. 2020, figure 1.2].
"""

from __future__ import annotations

from collections.abc import Sequence
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

CLAIM = "shots raise the accuracy, and more for the largest model than for the smallest"
FORMS = {
    "tiny": Form(0.2, 0.1, {"widths": [8, 16], "steps": 2, "batch": 4, "texts": 100, "letters": 4}),
    "small": Form(2, 0.5, {"widths": [8, 24, 64], "steps": 400, "batch": 8, "texts": 12000, "letters": 6}),
    "full": Form(
        120, 3.5, {"widths": [8, 16, 32, 64, 128, 256], "steps": 3000, "batch": 64, "texts": 60000, "letters": 16}
    ),
}
LETTERS, SHOTS = "abcdefghijklmnop", 12
LENGTH = 4 * 3 * SHOTS  # tokens per row: four texts of SHOTS pairs, with a space or end token after each pair
trials = TrialGrid(
    "width-{width}", width="widths", derive=lambda each: {"parameters": count(model_spec(each["width"])).parameters}
)


def model_spec(width: int) -> Any:
    return writer(width, 2, max(width // 16, 1), LENGTH, scaled=True)


def pair_texts(number: int, letters: int, seed: int) -> list[str]:
    """Return texts of pairs from an alphabet of `letters` letters, each text with its own shift."""
    draw = np.random.default_rng(seed)
    first, shifts = draw.integers(0, letters, (number, SHOTS)), draw.integers(1, letters, (number, 1))
    second = (first + shifts) % letters
    return [" ".join(LETTERS[a] + LETTERS[b] for a, b in zip(*pair)) for pair in zip(first, second)]


def work(values: Values, place: Place) -> list[Row]:
    data = Data(train=place.texts("pairs", lambda: pair_texts(values["texts"], values["letters"], 0)))
    run = training_run(
        "few-shot",
        model_spec(values["width"]),
        data,
        place.device,
        steps=values["steps"],
        batch=values["batch"],
        length=LENGTH,
        lr=min(0.2 / values["width"], 8e-3),
    )
    trainer = place.train(run)
    tests = pair_texts(512, values["letters"], 1)
    ids = torch.tensor([trainer.tokenizer.encode(text) for text in tests], device=trainer.device)
    with trainer.eval_mode():
        logits = trainer.model(input_ids=ids).logits[:, :-1].float()
    right = (logits.argmax(-1) == ids[:, 1:])[:, 0::3].float().mean(0)  # the second letter of every pair
    loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")[:, 0::3].mean(0)
    measured = zip(right.tolist(), loss.tolist())
    return [{"shots": shots, "accuracy": hits, "loss": nats} for shots, (hits, nats) in enumerate(measured)]


def gains(rows: Sequence[Row]) -> dict[int, float]:
    """Return width -> gain in accuracy from no shots to many shots."""
    gained = {}
    for width in dict.fromkeys(row["width"] for row in rows):
        accuracies = [row["accuracy"] for row in rows if row["width"] == width]
        gained[width] = mean(accuracies[-4:]) - accuracies[0]
    return gained


def claim(rows: Sequence[Row]) -> Verdict:
    gained = gains(rows)
    values = list(gained.values())
    holds = values[-1] > 0.3 and values[-1] > values[0] + 0.1
    return Verdict(holds, {f"gain by shots, width {width}": value for width, value in gained.items()})


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 1, 11, 4)
    sizes = {row["width"]: row["parameters"] for row in rows}
    for width, size in sizes.items():
        points = [(row["shots"], row["accuracy"]) for row in rows if row["width"] == width]
        axes[0, 0].plot(*zip(*points), marker="o", markersize=3, label=f"{size:,}")
    axes[0, 0].axhline(1 / rows[0]["letters"], color="#777777", linestyle=":")
    axes[0, 0].set(xlabel="shots", title="accuracy")
    axes[0, 0].legend(frameon=False, fontsize=8, title="parameters")
    for number in (0, 1, 4, SHOTS - 1):
        points = [(row["parameters"], row["accuracy"]) for row in rows if row["shots"] == number]
        axes[0, 1].plot(*zip(*points), marker="o", label=f"{number} shots")
    axes[0, 1].set(xscale="log", xlabel="parameters", title="accuracy by size")
    axes[0, 1].legend(frameon=False, fontsize=8)
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure
