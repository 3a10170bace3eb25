"""Batch or layer norm: on text, statistics over a batch are worse than statistics of each vector.

A small BERT has LayerNorm, or BatchNorm with one mean and variance per feature over all tokens of the batch, which
evaluation replaces by running statistics. Texts have equal or varied lengths, batches are small or large. Shen et al.
[2020] explain the difference by the distance of a batch's statistics from the running statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer.data import Data, Held
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.models import Model
from anyformer.objectives.masked import Masked
from anyformer.parts.norm import BatchNorm, BatchNormModule, LayerNorm
from anyformer.specs.codec import override
from anyformer.train.progress import read_metrics
from anyformer_course.lab.made_up_language import Language
from anyformer_course.lab.runs import WORDS, held_out_loss, mean, reader

CLAIM = (
    "the held-out loss is lower with LayerNorm at every batch size and for both kinds of lengths, with every seed; in "
    "small batches BatchNorm's statistics are farther from the running statistics"
)
FORMS = {
    "tiny": Form(0.2, 0.1, {"depth": 1, "width": 16, "steps": 4, "batches": [2, 4], "texts": 200, "seeds": 3}),
    "small": Form(2, 0.5, {"depth": 2, "width": 32, "steps": 200, "batches": [4, 16], "texts": 10_000, "seeds": 3}),
    "full": Form(90, 4, {"depth": 6, "width": 128, "steps": 2000, "batches": [4, 16, 64], "texts": 40_000, "seeds": 3}),
}
LENGTH, SENTENCES = 40, 4  # maximum tokens and sentences per text
HELD_OUT = 512  # number of held-out texts
LANGUAGE = Language(words=4)
NORMS = {"layer": LayerNorm(eps=1e-12), "batch": BatchNorm()}
LENGTHS = ("equal", "varied")
trials = TrialGrid("{norm}-{lengths}-{batch}-{seed}", norm=NORMS, lengths=LENGTHS, batch="batches", seed="seeds")


def norm_model(norm: str, width: int, depth: int) -> Model:
    """Return BERT with this kind of norm after both steps of every layer."""
    size = LANGUAGE.size + len(WORDS.special)
    described = reader("bert", "BertForMaskedLM", width, depth, 4, LENGTH, vocab_size=size)
    steps = ("attention", "feedforward")
    return override(described, {f"encoder.layers.{step}.out_norm": NORMS[norm] for step in steps})


def made_texts(number: int, lengths: str) -> list[str]:
    """Return texts of 1 to 4 sentences, or texts cut to 16 words, which is about the mean length of the others."""
    draw, texts = np.random.default_rng(0), []
    for _ in range(number):
        sentences = int(draw.integers(1, SENTENCES + 1)) if lengths == "varied" else SENTENCES
        words = " ".join(LANGUAGE.text(draw, sentences)).split()
        texts.append(" ".join(words[:16] if lengths == "equal" else words[: LENGTH - 2]))
    return texts


def work(values: Values, place: Place) -> list[Row]:
    lengths = values["lengths"]
    source = place.texts(lengths, lambda: made_texts(values["texts"], lengths))
    run = training_run(
        "norm",
        norm_model(values["norm"], values["width"], values["depth"]),
        Data(train=Held(source=source), valid=Held(source=source, out=True)),
        place.device,
        steps=values["steps"],
        batch=values["batch"],
        length=LENGTH,
        lr=3e-3 if values["width"] < 100 else 1e-3,
        objective=Masked(length=LENGTH),
        vocabulary=WORDS,
        seed=values["seed"],
    )
    trainer, batch = place.train(run), values["batch"]
    last = [line["loss"] for line in read_metrics(trainer.folder) if "loss" in line][-max(values["steps"] // 10, 1) :]
    row: Row = {
        "train": mean(last),
        "held out": held_out_loss(trainer, trainer.objective, batch, most=HELD_OUT // batch),
    }
    with own_statistics(trainer.model) as distances:
        row["own statistics"] = held_out_loss(trainer, trainer.objective, batch, most=HELD_OUT // batch)
    return [row | {"distance": mean(distances) if distances else 0.0}]


@contextmanager
def own_statistics(model: torch.nn.Module) -> Iterator[list[float]]:
    """Use the statistics of each batch instead of running statistics. The yielded list gets, per batch and norm, the
    distance of the batch's means from the running means in running standard deviations (mean over features)."""
    norms = [module for module in model.modules() if isinstance(module, BatchNormModule)]
    kept = [(norm.track_running_stats, norm.running_mean, norm.running_var) for norm in norms]
    distances: list[float] = []

    def measure(norm: BatchNormModule, inputs: tuple[Tensor]) -> None:
        _, running, spread = kept[norms.index(norm)]
        assert running is not None and spread is not None
        distances.append(float(((inputs[0].flatten(0, -2).mean(0) - running).abs() / spread.sqrt()).mean()))

    hooks = [norm.register_forward_pre_hook(measure) for norm in norms]
    for norm in norms:
        norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
    try:
        yield distances
    finally:
        for norm, hook, old in zip(norms, hooks, kept):
            hook.remove()
            norm.track_running_stats, norm.running_mean, norm.running_var = old


def settings(rows: Sequence[Row], what: str) -> dict[tuple[str, str, int], list[float]]:
    """Return (norm, lengths, batch) -> values, one per seed."""
    values: dict[tuple[str, str, int], list[float]] = {}
    for row in rows:
        values.setdefault((row["norm"], row["lengths"], row["batch"]), []).append(row[what])
    return values


def claim(rows: Sequence[Row]) -> Verdict:
    held, with_batch, far = (settings(rows, what) for what in ("held out", "own statistics", "distance"))
    batches = sorted({row["batch"] for row in rows})
    results, better = {}, True
    for lengths, batch in product(LENGTHS, batches):
        name = f"{lengths} lengths, batch {batch}"
        layer, other = (held[norm, lengths, batch] for norm in NORMS)
        better = better and all(a < b for a, b in zip(layer, other, strict=True))
        results[f"LayerNorm, {name}"], results[f"BatchNorm, {name}"] = mean(layer), mean(other)
        results[f"BatchNorm, own statistics, {name}"] = mean(with_batch["batch", lengths, batch])
        results[f"distance of the statistics, {name}"] = mean(far["batch", lengths, batch])
    farther = all(
        mean(far["batch", lengths, batches[0]]) > mean(far["batch", lengths, batches[-1]]) for lengths in LENGTHS
    )
    return Verdict(better and farther, results)


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(3, 1, 14, 4)
    for axis, lengths in zip(axes[0], LENGTHS):
        for number, (what, style) in enumerate((("train", ":"), ("own statistics", "--"), ("held out", "-"))):
            for color, norm in enumerate(NORMS):
                every = {key[2]: each for key, each in settings(rows, what).items() if key[:2] == (norm, lengths)}
                axis.plot(
                    [*every], [mean(each) for each in every.values()], style, color=f"C{color}",
                    label=f"{norm} norm, {what}", marker="o" if number == 2 else None,
                )  # fmt: skip
        axis.set(xscale="log", xlabel="texts per batch", title=f"loss, {lengths} lengths")
    for lengths in LENGTHS:
        every = {key[2]: each for key, each in settings(rows, "distance").items() if key[:2] == ("batch", lengths)}
        axes[0, 2].plot([*every], [mean(each) for each in every.values()], marker="o", label=f"{lengths} lengths")
    axes[0, 2].set(xscale="log", xlabel="texts per batch", title="distance of a batch's means from the running means")
    for axis in axes.flat:
        axis.legend(frameon=False, fontsize=7)
        axis.grid(alpha=0.3)
    return figure
