"""Batch or layer norm: on text, statistics over a batch are worse than those of each vector.

The norms of a small BERT as they are (LayerNorm), or with one mean and variance a feature over all tokens of the batch
(BatchNorm), which evaluation replaces by running means. Texts of one length or of many, and small or large batches.
How far a batch's statistics are from the running ones is what Shen et al. [2020] hold to be the reason.
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
from anyformer.lab.made_up_language import Language
from anyformer.lab.runs import WORDS, held_out_loss, mean, reader, training
from anyformer.lab.trials import Place, Row, Trial, Values
from anyformer.look import figures
from anyformer.models import Model
from anyformer.objectives.masked import Masked
from anyformer.parts.norm import BatchNorm, BatchNormModule, LayerNorm
from anyformer.specs.codec import override
from anyformer.train.progress import read_metrics

CLAIM = (
    "held-out loss is lower with LayerNorm at every batch size and for both kinds of lengths, with every seed, and "
    "BatchNorm's statistics are farther from the running ones in small batches"
)
FORMS = {
    "tiny": Form(0.2, 0.1, {"depth": 1, "width": 16, "steps": 4, "batches": [2, 4], "texts": 200, "seeds": 3}),
    "small": Form(2, 0.5, {"depth": 2, "width": 32, "steps": 200, "batches": [4, 16], "texts": 10_000, "seeds": 3}),
    "full": Form(90, 4, {"depth": 6, "width": 128, "steps": 2000, "batches": [4, 16, 64], "texts": 40_000, "seeds": 3}),
}
LENGTH, SENTENCES = 40, 4  # at most so many tokens and sentences a text
HELD_OUT = 512  # texts
LANGUAGE = Language(words=4)
NORMS = {"layer": LayerNorm(eps=1e-12), "batch": BatchNorm()}
LENGTHS = ("equal", "varied")


def trials(depth: int, width: int, steps: int, batches: list[int], texts: int, seeds: int) -> list[Trial]:
    same = {"depth": depth, "width": width, "steps": steps, "texts": texts}
    return [
        Trial(
            f"{norm}-{lengths}-{batch}-{seed}", {"norm": norm, "lengths": lengths, "batch": batch, "seed": seed, **same}
        )
        for norm, lengths, batch, seed in product(NORMS, LENGTHS, batches, range(seeds))
    ]


def norm_model(norm: str, width: int, depth: int) -> Model:
    """BERT with these norms after both steps of every layer."""
    size = LANGUAGE.size + len(WORDS.special)
    described = reader("bert", "BertForMaskedLM", width, depth, 4, LENGTH, vocab_size=size)
    steps = ("attention", "feedforward")
    return override(described, {f"encoder.layers.{step}.out_norm": NORMS[norm] for step in steps})


def made_texts(number: int, lengths: str) -> list[str]:
    """Texts of 1 to 4 sentences, or all cut to the same number of words: the mean of the others, about."""
    draw, found = np.random.default_rng(0), []
    for _ in range(number):
        sentences = int(draw.integers(1, SENTENCES + 1)) if lengths == "varied" else SENTENCES
        words = " ".join(LANGUAGE.text(draw, sentences)).split()
        found.append(" ".join(words[:16] if lengths == "equal" else words[: LENGTH - 2]))
    return found


def work(values: Values, place: Place) -> list[Row]:
    lengths = values["lengths"]
    source = place.texts(lengths, lambda: made_texts(values["texts"], lengths))
    run = training(
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
    found: Row = {
        "train": mean(last),
        "held out": held_out_loss(trainer, trainer.objective, batch, most=HELD_OUT // batch),
    }
    with own_statistics(trainer.model) as distances:
        found["own statistics"] = held_out_loss(trainer, trainer.objective, batch, most=HELD_OUT // batch)
    return [found | {"distance": mean(distances) if distances else 0.0}]


@contextmanager
def own_statistics(model: torch.nn.Module) -> Iterator[list[float]]:
    """Evaluation with the statistics of each batch. The list gets, for every batch and norm, how far its means are from
    the running ones, in units of the running standard deviation: the mean over the features."""
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
    """(norm, lengths, batch) -> a value a seed"""
    found: dict[tuple[str, str, int], list[float]] = {}
    for row in rows:
        found.setdefault((row["norm"], row["lengths"], row["batch"]), []).append(row[what])
    return found


def claim(rows: Sequence[Row]) -> Verdict:
    held, own, far = (settings(rows, what) for what in ("held out", "own statistics", "distance"))
    batches = sorted({row["batch"] for row in rows})
    found, better = {}, True
    for lengths, batch in product(LENGTHS, batches):
        name = f"{lengths} lengths, batch {batch}"
        layer, other = (held[norm, lengths, batch] for norm in NORMS)
        better = better and all(a < b for a, b in zip(layer, other, strict=True))
        found[f"LayerNorm, {name}"], found[f"BatchNorm, {name}"] = mean(layer), mean(other)
        found[f"BatchNorm, own statistics, {name}"] = mean(own["batch", lengths, batch])
        found[f"distance of the statistics, {name}"] = mean(far["batch", lengths, batch])
    farther = all(
        mean(far["batch", lengths, batches[0]]) > mean(far["batch", lengths, batches[-1]]) for lengths in LENGTHS
    )
    return Verdict(better and farther, found)


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(3, 1, 14, 4)
    for axis, lengths in zip(axes[0], LENGTHS):
        for number, (what, style) in enumerate((("train", ":"), ("own statistics", "--"), ("held out", "-"))):
            for colour, norm in enumerate(NORMS):
                every = {key[2]: each for key, each in settings(rows, what).items() if key[:2] == (norm, lengths)}
                axis.plot(
                    [*every], [mean(each) for each in every.values()], style, color=f"C{colour}",
                    label=f"{norm} norm, {what}", marker="o" if number == 2 else None,
                )  # fmt: skip
        axis.set(xscale="log", xlabel="texts a batch", title=f"loss, {lengths} lengths")
    for lengths in LENGTHS:
        every = {key[2]: each for key, each in settings(rows, "distance").items() if key[:2] == ("batch", lengths)}
        axes[0, 2].plot([*every], [mean(each) for each in every.values()], marker="o", label=f"{lengths} lengths")
    axes[0, 2].set(xscale="log", xlabel="texts a batch", title="distance of a batch's means from the running ones")
    for axis in axes.flat:
        axis.legend(frameon=False, fontsize=7)
        axis.grid(alpha=0.3)
    return figure
