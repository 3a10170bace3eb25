"""Batch size: larger batches with larger rates learn masked words at least as well from the same number of examples.

A small BERT sees the same number of texts in batches of several sizes, each with several rates around a rate that grows
with the square root of the batch size; the best rate is used. RoBERTa found large batches better for the same number of
passes over the data [Liu et al. 2019, table 3: perplexity 3.99, 3.68 and 3.77 for batches of 256, 2,000 and 8,000].
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from anyformer.counting import count
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Row, Trial, Values
from anyformer.look import figures
from anyformer.models import Model
from anyformer.objectives.masked import Masked
from anyformer_course.lab.runs import WORDS, Language, mean, reader, texts

CLAIM = (
    "at the same number of texts, with the best rate of each size and every seed, four times the smallest batch size "
    "has a lower loss; the largest batch has a higher best rate than the smallest"
)
FORMS = {
    "tiny": Form(0.2, 0.1, {
        "depth": 1, "width": 16, "texts": 64, "batches": [4, 16], "lr": 2e-3, "rates": [1.0], "seeds": 3
    }),
    "small": Form(2, 0.5, {
        "depth": 2, "width": 32, "texts": 5120, "batches": [8, 32, 128], "lr": 2e-3, "rates": [0.5, 1.0, 2.0],
        "seeds": 3,
    }),
    "full": Form(400, 4, {
        "depth": 4, "width": 128, "texts": 128_000, "batches": [32, 128, 512], "lr": 5e-4, "rates": [0.5, 1.0, 2.0],
        "seeds": 3,
    }),
}  # fmt: skip
LANGUAGE, LENGTH = Language(words=2), 32
HIDDEN = 0.3  # share of masked words: with 0.15 a short training learns too little


def trials(
    depth: int, width: int, texts: int, batches: list[int], lr: float, rates: list[float], seeds: int,
    data: str | None = None,
) -> list[Trial]:  # fmt: skip
    """`lr` is the middle rate of the smallest batch, scaled by sqrt(batch size); `rates` are factors to try."""
    flops = count(masked_model(width, depth)).training_flops(LENGTH) * texts  # the same for all
    same = {"depth": depth, "width": width, "texts": texts, "flops": flops, "data": data}
    trials = []
    for batch, factor, seed in product(batches, rates, range(seeds)):
        rate = lr * factor * (batch / batches[0]) ** 0.5
        trials.append(Trial(f"batch-{batch}-{rate:.2g}-{seed}", {"batch": batch, "lr": rate, "seed": seed, **same}))
    return trials


def masked_model(width: int, depth: int) -> Model:
    size = LANGUAGE.size + len(WORDS.special)
    return reader("bert", "BertForMaskedLM", width, depth, 4, LENGTH, vocab_size=size)


def work(values: Values, place: Place) -> list[Row]:
    run = training_run(
        "batch-size",
        masked_model(values["width"], values["depth"]),
        texts(place, "made-up", values["data"], LANGUAGE, 4000),
        place.device,
        steps=values["texts"] // values["batch"],
        batch=values["batch"],
        length=LENGTH,
        lr=values["lr"],
        objective=Masked(rate=HIDDEN),
        vocabulary=WORDS,
        seed=values["seed"],
        batches=max(1024 // values["batch"], 1),  # the same number of texts for all
    )
    return [{"loss": place.train(run).scores["loss"]}]


def by_rate(rows: Sequence[Row], batch: int) -> dict[float, list[float]]:
    """Return rate -> losses, one per seed."""
    losses: dict[float, list[float]] = {}
    for row in rows:
        if row["batch"] == batch:
            losses.setdefault(row["lr"], []).append(row["loss"])
    return losses


def best_rate(rows: Sequence[Row], batch: int) -> float:
    """Return the rate with the lowest mean loss."""
    return min((mean(each), lr) for lr, each in by_rate(rows, batch).items())[1]


def claim(rows: Sequence[Row]) -> Verdict:
    batches = sorted({row["batch"] for row in rows})
    rates = {batch: best_rate(rows, batch) for batch in batches}
    losses = {batch: by_rate(rows, batch)[rate] for batch, rate in rates.items()}
    small, larger = losses[batches[0]], losses[batches[1]]
    results = {f"loss, batch {batch}": mean(each) for batch, each in losses.items()}
    results |= {f"best rate, batch {batch}": rate for batch, rate in rates.items()}
    results["smallest gain of a seed"] = min(a - b for a, b in zip(small, larger, strict=True))
    return Verdict(results["smallest gain of a seed"] > 0 and rates[batches[-1]] > rates[batches[0]], results)


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 1, 11, 4)
    batches = sorted({row["batch"] for row in rows})
    for batch in batches:
        every = by_rate(rows, batch)
        axes[0, 0].plot([*every], [mean(each) for each in every.values()], marker="o", label=f"batch {batch}")
        losses = every[best_rate(rows, batch)]
        axes[0, 1].plot([batch] * len(losses), losses, "o", color="C0")
    axes[0, 1].plot(batches, [mean(by_rate(rows, batch)[best_rate(rows, batch)]) for batch in batches], color="C0")
    axes[0, 0].set(xscale="log", xlabel="rate", title="loss by rate, the mean over seeds")
    axes[0, 0].legend(frameon=False, fontsize=8)
    axes[0, 1].set(xscale="log", xlabel="texts per batch", title="loss at the best rate, same number of texts")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure
