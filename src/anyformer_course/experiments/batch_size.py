"""Batch size: in equal time, larger batches with larger rates learn masked words at least as well.

A small BERT is trained for the same number of seconds with batches of several sizes, each with several rates around a
rate that grows with the square root of the batch size; the best rate is used. A short training of each size measures
the seconds per step on this device, one after another, before the first trial starts. RoBERTa found large batches
better for the same number of passes over the data [Liu et al. 2019, table 3: perplexity 3.99, 3.68 and 3.77 for batches
of 256, 2,000 and 8,000], and they use a GPU better.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from filelock import FileLock

from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import LEARNED, guessing_loss, training_run
from anyformer.lab.trials import Place, Row, TrialGrid, Values, write
from anyformer.look import figures
from anyformer.objectives.masked import Masked
from anyformer.train.progress import read_metrics
from anyformer.train.run import Run
from anyformer_course.lab.runs import READER, READER_SIZE, WORDS, Language, mean, reader, texts

CLAIM = (
    "in equal time, with the best rate of each size and every seed, four times the smallest batch size has a lower "
    "loss; the largest batch has a higher best rate than the smallest"
)
FORMS = {
    "tiny": Form(0.3, 0.1, {
        "depth": 1, "width": 16, "seconds": 0.1, "probe": 4, "smallest": 4, "lr": 2e-3, "factors": [1.0],
        "text": "made-up", "seeds": 2,
    }),
    "small": Form(2, 0.5, {
        "depth": 2, "width": 32, "seconds": 6, "probe": 30, "smallest": 8, "lr": 2e-3,
        "factors": [0.5, 1.0, 2.0], "text": "made-up", "seeds": 3,
    }),
    "full": Form(60, 3, {
        "depth": 4, "width": 128, "seconds": 12, "probe": 100, "smallest": 32, "lr": 5e-4,
        "factors": [0.5, 1.0, 2.0], "text": "library", "seeds": 3,
    }),
}  # fmt: skip
LANGUAGE, LENGTH = Language(words=2), 32
HIDDEN = 0.3  # share of masked words: with 0.15 a short training learns too little
POWERS = (0, 1, 2)  # batches are 1, 4 and 16 times the smallest; rates grow with the square root
trials = TrialGrid(
    "batch-{batch}-{factor:g}-{seed}",
    data=True,
    power=POWERS,
    factor="factors",
    seed="seeds",
    derive=lambda each: {
        "batch": each["smallest"] * 4 ** each["power"],
        "lr": each["lr"] * each["factor"] * 2 ** each["power"],
    },
)


def masked_run(values: Values, batch: int, steps: int, place: Place) -> Run:
    """Return a training with the trial's rate on words of a made-up language or on bytes."""
    by_words = values["text"] == "made-up" and values["data"] is None  # tokens are words, otherwise bytes
    size = LANGUAGE.size + len(WORDS.special) if by_words else READER_SIZE
    return training_run(
        "batch-size",
        reader("bert", "BertForMaskedLM", values["width"], values["depth"], 4, LENGTH, vocab_size=size),
        texts(place, values["text"], values["data"], LANGUAGE, 4000),
        place.device,
        steps=steps,
        batch=batch,
        length=LENGTH,
        lr=values["lr"],
        objective=Masked(rate=HIDDEN),
        vocabulary=WORDS if by_words else READER,
        seed=values["seed"],
        batches=max(1024 // batch, 1),  # the same number of texts for all
    )


def step_seconds(values: Values, place: Place) -> dict[str, float]:
    """Return batch size -> mean seconds of a step. The first trial measures all sizes; the others wait for it."""
    path = place.shared / "seconds.json"
    place.shared.mkdir(parents=True, exist_ok=True)
    with FileLock(place.shared / ".seconds.lock"):
        if not path.is_file():
            seconds: dict[str, float] = {}
            for batch in (values["smallest"] * 4**power for power in POWERS):
                trainer = place.train(masked_run(values, batch, values["probe"], place), name=f"probe-{batch}")
                clock = [line["seconds"] for line in read_metrics(trainer.folder) if "loss" in line]
                middle = len(clock) // 2  # the first steps are slower
                seconds[str(batch)] = max((clock[-1] - clock[middle - 1]) / (len(clock) - middle), 1e-5)
            write(path, json.dumps(seconds))
    return json.loads(path.read_text("utf-8"))


def work(values: Values, place: Place) -> list[Row]:
    seconds = step_seconds(values, place)[str(values["batch"])]
    steps = max(round(values["seconds"] / seconds), 1)
    trainer = place.train(masked_run(values, values["batch"], steps, place))
    return [
        {"loss": trainer.scores["loss"], "steps": steps, "step seconds": seconds, "guessing": guessing_loss(trainer)}
    ]


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
    results |= {f"steps, batch {row['batch']}": row["steps"] for row in rows}
    results["smallest gain of a seed"] = min(a - b for a, b in zip(small, larger, strict=True))
    best = min(losses.values(), key=mean)
    results["best size: largest loss / loss of guessing"] = worst = max(best) / min(row["guessing"] for row in rows)
    holds = results["smallest gain of a seed"] > 0 and rates[batches[-1]] > rates[batches[0]]
    return Verdict(holds, results, worst <= LEARNED)


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
    axes[0, 1].set(xscale="log", xlabel="texts per batch", title="loss at the best rate, equal time")
    rates = sorted({row["lr"] for row in rows})
    for axis, ticks in zip(axes[0], (rates, batches), strict=True):
        axis.set_xticks(ticks, [f"{each:g}" for each in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    return figure
