"""What tuning changes: which layers of a pretrained encoder move when it is tuned for a task.

A small BERT learns hidden words of a made-up language, and is then tuned to say of two sentences whether they share a
topic. How far the weights of each layer move, relative to their length, and what is lost if that layer alone goes back
to where it was. The control goes on with hidden words for as many steps at the same rate: nothing new is asked there.
Adam's steps are about equally long for every weight, however small its gradient, so distances differ by little.
"""

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
from anyformer.lab.experiments.next_sentence import LABELS, LENGTH, held_pairs, pretraining_run
from anyformer.lab.made_up_language import Language
from anyformer.lab.runs import held_out_loss, mean
from anyformer.lab.trials import Place, Row, Trial, Values
from anyformer.look import figures
from anyformer.objectives.classify import Classify
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Keep, Pretrained

CLAIM = (
    "tuning moves the last layer farther than the first, relative to its length, with every seed, and by more than "
    "going on with pretraining does"
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


def trials(
    depth: int, width: int, steps: int, batch: int, topics: int, words: int, texts: int, tuning: int, seeds: int
) -> list[Trial]:
    same = {
        "depth": depth,
        "width": width,
        "steps": steps,
        "batch": batch,
        "topics": topics,
        "words": words,
        "texts": texts,
        "tuning": tuning,
    }
    return [Trial(f"seed-{seed}", {"seed": seed, **same}) for seed in range(seeds)]


def work(values: Values, place: Place) -> list[Row]:
    language, steps = Language(topics=values["topics"], words=values["words"]), values["tuning"]
    run = pretraining_run("pretrained", language, 1.0, values, place)
    before = {name: value.clone() for name, value in layers(place.train(run, name="pretrained").model).items()}
    told = held_pairs(language, place)
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
        data=Data(train=told, valid=told.replace(out=True)),
        model=Pretrained(path=path, architecture="BertForSequenceClassification", labels=LABELS),
        objective=Classify(labels=LABELS, pair=True, length=LENGTH),
        evaluate=Evaluate(every=steps, metrics=("accuracy",), patience=None),
    )
    rows: list[Row] = []
    for kind, each in zip(KINDS, (tuned, again)):
        trainer = place.train(each.replace(name=kind), name=kind)
        rows += [{"kind": kind, "layer": i, "moved": moved} for i, moved in distances(before, trainer.model)]
        if kind == "tuned":  # what each layer gained
            rows.append({"accuracy": trainer.scores["accuracy"], "loss": held_out_loss(trainer, each.objective, 64)})
            for row in rows[:-1]:
                with layer_at(trainer.model, before, row["layer"]):
                    row["without"] = held_out_loss(trainer, each.objective, 64)
    return rows


def layers(model: torch.nn.Module) -> dict[str, Tensor]:
    """The weights of all layers by name: "encoder.layers.0..."."""
    return {name: value.detach() for name, value in model.named_parameters() if name.startswith(PREFIX)}


def layer_of(name: str) -> int:
    return int(name.removeprefix(PREFIX).partition(".")[0])


def distances(before: Mapping[str, Tensor], model: torch.nn.Module) -> list[tuple[int, float]]:
    """(layer, how far its weights are from where they were, all of them as one vector, in units of its length)"""
    moved, length = defaultdict[int, float](float), defaultdict[int, float](float)
    for name, value in layers(model).items():
        moved[layer_of(name)] += float((value - before[name]).double().square().sum())
        length[layer_of(name)] += float(before[name].double().square().sum())
    return [(layer, math.sqrt(moved[layer] / length[layer])) for layer in sorted(moved)]


@contextmanager
def layer_at(model: torch.nn.Module, before: Mapping[str, Tensor], layer: int) -> Iterator[None]:
    """One layer has the weights it had before."""
    own = {name: value for name, value in layers(model).items() if layer_of(name) == layer}
    kept = {name: value.clone() for name, value in own.items()}
    for name, value in own.items():
        value.copy_(before[name])
    try:
        yield
    finally:
        for name, value in own.items():
            value.copy_(kept[name])


def moved(rows: Sequence[Row], kind: str) -> list[list[float]]:
    """Of every seed, the distance of each layer."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if row.get("kind") == kind:
            found.setdefault(row["seed"], []).append(row["moved"])
    return [*found.values()]


def claim(rows: Sequence[Row]) -> Verdict:
    ratios = {kind: [each[-1] / each[0] for each in moved(rows, kind)] for kind in KINDS}
    found = {f"{kind}: layer {i} moved": mean(each) for kind in KINDS for i, each in enumerate(zip(*moved(rows, kind)))}
    found |= {f"{kind}: last / first layer, least of a seed": min(each) for kind, each in ratios.items()}
    costs = [row["without"] - row["loss"] for row in joined(rows)]
    for layer in sorted({row["layer"] for row in joined(rows)}):
        own = [cost for cost, row in zip(costs, joined(rows)) if row["layer"] == layer]
        found[f"loss without what layer {layer} learnt, more by"] = mean(own)
    found["accuracy"] = mean([row["accuracy"] for row in rows if "accuracy" in row])
    farther = all(tuned > max(1.0, control) for tuned, control in zip(*ratios.values(), strict=True))
    return Verdict(farther, found)


def joined(rows: Sequence[Row]) -> list[Row]:
    """The rows of layers that went back, with the loss of the whole model."""
    whole = {row["seed"]: row["loss"] for row in rows if "loss" in row}
    return [{**row, "loss": whole[row["seed"]]} for row in rows if "without" in row]


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 1, 11, 4)
    for number, kind in enumerate(KINDS):
        for each in moved(rows, kind):
            axes[0, 0].plot(each, color=f"C{number}", linewidth=0.7, alpha=0.5)
        axes[0, 0].plot([mean(each) for each in zip(*moved(rows, kind))], color=f"C{number}", marker="o", label=kind)
    axes[0, 0].set(xlabel="layer", title="distance moved / length of the weights")
    axes[0, 0].legend(frameon=False, fontsize=8)
    back = [(row["layer"], row["without"] - row["loss"]) for row in joined(rows)]
    axes[0, 1].plot(*zip(*back), "o")
    axes[0, 1].set(xlabel="layer", title="loss added if this layer goes back: a point a seed")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure
