"""What tuning changes: which layers of a pretrained encoder change when it is fine-tuned for a task.

A small BERT is pretrained on masked words of a made-up language, and then fine-tuned to classify whether two sentences
share a topic. Measured are the distance that the weights of each layer move, relative to their norm, and the increase
of the loss if only that layer gets its pretrained weights back. The control continues pretraining for the same number
of steps at the same rate. Adam's steps have about the same size for every weight, however small its gradient, so the
distances differ little."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from anyformer.data import Data
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.objectives.classify import Classify
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Keep, Pretrained
from anyformer_course.experiments.next_sentence import LABELS, LENGTH, held_pairs, pretraining_run
from anyformer_course.lab.made_up_language import Language
from anyformer_course.lab.runs import held_out_loss, mean

CLAIM = (
    "with every seed, fine-tuning moves the last layer farther than the first, relative to its norm, and by a larger "
    "ratio than more pretraining does"
)
FORMS = {
    "tiny": Form(0.2, 0.1, {
        "depth": 2, "width": 16, "steps": 2, "batch": 2, "topics": 2, "words": 3, "texts": 80, "tuning": 2, "seeds": 3
    }),
    "small": Form(2, 0.5, {
        "depth": 4, "width": 48, "steps": 300, "batch": 32, "topics": 6, "words": 6, "texts": 4000, "tuning": 120,
        "seeds": 3,
    }),
    "full": Form(120, 3, {
        "depth": 12, "width": 128, "steps": 3000, "batch": 128, "topics": 16, "words": 20, "texts": 20000,
        "tuning": 500, "seeds": 3,
    }),
}  # fmt: skip
KINDS, PREFIX = ("tuned", "control"), "encoder.layers."
trials = TrialGrid("seed-{seed}", seed="seeds")


def work(values: Values, place: Place) -> list[Row]:
    language, steps = Language(topics=values["topics"], words=values["words"]), values["tuning"]
    run = pretraining_run("pretrained", language, 1.0, values, place)
    before = {name: value.clone() for name, value in layers(place.train(run, name="pretrained").model).items()}
    labelled = held_pairs(language, place)
    path = str(place.folder / "pretrained")
    again = run.replace(
        vocabulary=None,
        model=Pretrained(path=path),
        optimizer=AdamW(lr=run.optimizer.lr / 3, weight_decay=0.0),
        schedule=Linear(warmup=steps // 10),
        batch=Batch(examples=16, length=LENGTH),
        steps=steps,
        keep=Keep(every=steps, best=False),
        evaluate=Evaluate(every=steps, patience=None),
    )
    tuned = again.replace(
        data=Data(train=labelled, valid=labelled.replace(out=True)),
        model=Pretrained(path=path, architecture="BertForSequenceClassification", labels=LABELS),
        objective=Classify(labels=LABELS, pair=True, length=LENGTH),
        evaluate=Evaluate(every=steps, metrics=("accuracy",), patience=None),
    )
    rows: list[Row] = []
    for kind, each in zip(KINDS, (tuned, again)):
        trainer = place.train(each.replace(name=kind), name=kind)
        rows += [{"kind": kind, "layer": i, "moved": moved} for i, moved in distances(before, trainer.model)]
        if kind == "tuned":  # the contribution of each layer
            rows.append({"accuracy": trainer.scores["accuracy"], "loss": held_out_loss(trainer, each.objective, 64)})
            for row in rows[:-1]:
                with layer_at(trainer.model, before, row["layer"]):
                    row["without"] = held_out_loss(trainer, each.objective, 64)
    return rows


def layers(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the weights of all layers by name: "encoder.layers.0..."."""
    return {name: value.detach() for name, value in model.named_parameters() if name.startswith(PREFIX)}


def layer_of(name: str) -> int:
    return int(name.removeprefix(PREFIX).partition(".")[0])


def distances(before: Mapping[str, Tensor], model: torch.nn.Module) -> list[tuple[int, float]]:
    """Return (layer, distance of its weights from `before`, relative to their norm), with all weights as one vector."""
    moved, length = defaultdict[int, float](float), defaultdict[int, float](float)
    for name, value in layers(model).items():
        moved[layer_of(name)] += float((value - before[name]).double().square().sum())
        length[layer_of(name)] += float(before[name].double().square().sum())
    return [(layer, math.sqrt(moved[layer] / length[layer])) for layer in sorted(moved)]


@contextmanager
def layer_at(model: torch.nn.Module, before: Mapping[str, Tensor], layer: int) -> Iterator[None]:
    """Restore the weights of one layer from `before` within the context."""
    weights = {name: value for name, value in layers(model).items() if layer_of(name) == layer}
    tuned = {name: value.clone() for name, value in weights.items()}
    for name, value in weights.items():
        value.copy_(before[name])
    try:
        yield
    finally:
        for name, value in weights.items():
            value.copy_(tuned[name])


def moved(rows: Sequence[Row], kind: str) -> list[list[float]]:
    """Return the distance of each layer, for every seed."""
    by_seed: dict[int, list[float]] = {}
    for row in rows:
        if row.get("kind") == kind:
            by_seed.setdefault(row["seed"], []).append(row["moved"])
    return [*by_seed.values()]


def claim(rows: Sequence[Row]) -> Verdict:
    ratios = {kind: [each[-1] / each[0] for each in moved(rows, kind)] for kind in KINDS}
    results = {
        f"{kind}: layer {i} moved": mean(each) for kind in KINDS for i, each in enumerate(zip(*moved(rows, kind)))
    }
    results |= {f"{kind}: last / first layer, lowest seed": min(each) for kind, each in ratios.items()}
    costs = [row["without"] - row["loss"] for row in joined(rows)]
    for layer in sorted({row["layer"] for row in joined(rows)}):
        added = [cost for cost, row in zip(costs, joined(rows)) if row["layer"] == layer]
        results[f"loss increase if layer {layer} is restored"] = mean(added)
    results["accuracy"] = mean([row["accuracy"] for row in rows if "accuracy" in row])
    farther = all(tuned > max(1.0, control) for tuned, control in zip(*ratios.values(), strict=True))
    return Verdict(farther, results)


def joined(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of restored layers, with the loss of the fine-tuned model."""
    whole = {row["seed"]: row["loss"] for row in rows if "loss" in row}
    return [{**row, "loss": whole[row["seed"]]} for row in rows if "without" in row]


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 1, 11, 4)
    for number, kind in enumerate(KINDS):
        for each in moved(rows, kind):
            axes[0, 0].plot(each, color=f"C{number}", linewidth=0.7, alpha=0.5)
        axes[0, 0].plot([mean(each) for each in zip(*moved(rows, kind))], color=f"C{number}", marker="o", label=kind)
    axes[0, 0].set(xlabel="layer", title="distance moved / norm of the weights")
    axes[0, 0].legend(frameon=False, fontsize=8)
    back = [(row["layer"], row["without"] - row["loss"]) for row in joined(rows)]
    axes[0, 1].plot(*zip(*back), "o")
    axes[0, 1].set(xlabel="layer", title="loss increase if this layer is restored: one point per seed")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure
