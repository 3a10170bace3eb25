"""Pixel attention or convolution: attention in pixel neighbourhoods costs more time than it brings accuracy.

The same ResNet of bottlenecks has one of three layers in each bottleneck: a 3 x 3 convolution, stand-alone attention
[Ramachandran et al. 2019] or a local relation [Hu et al. 2019], both over the 7 x 7 pixels around each pixel. The inner
width is chosen so that all take as many operations as the convolution, as in the table of Hu et al. The images are
drawn shapes or, with a folder that contains fashion_mnist_12k_2k.npz (`--data`), garments. Measured are the accuracy on
test images after the same number of steps and the median time of a training step on the device, while other trials may
run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from anyformer import families
from anyformer.counting import count
from anyformer.data import Arrays, Beside, Data, JSONLines, Source
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.models import Model
from anyformer.objectives.images import ClassifyImage
from anyformer.parts.embedding.convolution import ConvolutionEmbedding
from anyformer.parts.grid.convolution import Convolution
from anyformer.parts.grid.local_relation import LocalRelation
from anyformer.recipes.fashion_mnist import LABELS, SIDE
from anyformer.specs.codec import override
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run
from anyformer.train.trainer import Trainer
from anyformer_course.data.drawings import SHAPES, write_shapes
from anyformer_course.lab.runs import StepTimes, mean

CLAIM = (
    "at equal operations (within 10 %) neither kind of attention is more accurate than convolution by more than one "
    "point, in the mean over seeds, and a training step with either takes at least 1.5 times as long"
)
FORMS = {
    "tiny": Form(0.2, 0.1, {"width": 8, "depth": 1, "steps": 2, "batch": 4, "images": 40, "test": 20}),
    "full": Form(
        120, 3, {"width": 32, "depth": 3, "steps": 1500, "batch": 128, "images": 12000, "test": 2000, "seeds": 3}
    ),
}  # fmt: skip
LEARNED = 0.5  # share of the way from chance to 1 that the convolution's accuracy must have gone with every seed
KINDS = ("convolution", "stand-alone attention", "local relation")
FILE, GROUP, HALO = "fashion_mnist_12k_2k.npz", 4, 3  # GROUP: channels per head; HALO: pixels on each side
trials = TrialGrid("{kind}-{seed}", kind=KINDS, seed="seeds", data=True)


def check_data(path: str) -> None:
    if not (Path(path) / FILE).is_file():
        raise ValueError(f"--data {path}: no {FILE} in it")


def network(kind: str, width: int, depth: int, narrow: int, side: int, channels: int, labels: int) -> Model:
    """Return a ResNet of two stages with bottlenecks of the inner widths `narrow` and 2 `narrow`."""
    inner = (narrow, 2 * narrow)
    config = {
        "embedding_size": 4 * width,
        "hidden_sizes": (4 * width, 8 * width),
        "bottleneck_sizes": inner,
        "depths": (depth, depth + 1),  # the first layer of the second stage halves the grid
        "num_heads": tuple(each // GROUP for each in inner),
        "halo": HALO,
        "image_size": side,
        "num_labels": labels,
    }
    stem = ConvolutionEmbedding(layers=(Convolution(stride=2),), pool=None, channels=channels, image_size=(side, side))
    changes: dict[str, Any] = {"embedding": stem}
    slots = (("encoder.stages.0.layers.convolutions.op.layers.1", 1, inner[0]),
             ("encoder.stages.1.layers.convolutions.op.layers.1", 1, inner[1]),
             ("encoder.down.0.layers.1", 2, inner[1]))  # fmt: skip
    for slot, stride, size in slots:
        if kind == "convolution":
            changes[slot] = Convolution(width=size, stride=stride)
        elif kind == "local relation":
            changes[f"{slot}.op"] = LocalRelation(num_heads=size // GROUP, size=2 * HALO + 1)
    return override(families.find("attention_resnet").read(config), changes)


@cache
def matched_network(kind: str, width: int, depth: int, side: int, channels: int, labels: int) -> Model:
    """Return the network whose operations, which grow with the inner width, are nearest to the convolutional one's."""

    @cache
    def flops(kind: str, narrow: int) -> int:
        return count(network(kind, width, depth, narrow, side, channels, labels)).flops(1)

    narrow, wanted = width, flops("convolution", width)
    if kind != "convolution":
        widths = range(GROUP, 6 * width, GROUP)
        above = bisect_left(widths, wanted, key=lambda narrow: flops(kind, narrow))
        narrow = min(widths[max(above - 1, 0) : above + 1], key=lambda narrow: abs(flops(kind, narrow) - wanted))
    return network(kind, width, depth, narrow, side, channels, labels)


def images(values: Values, place: Place) -> tuple[Source, Source, ClassifyImage]:
    """Return the training images, the test images and the objective that reads them."""
    if values["data"] is not None:
        path = str(Path(values["data"]) / FILE)
        train, test = (
            Arrays(path=path, fields={"image": f"x_{part}", "label": f"y_{part}"}) for part in ("train", "test")
        )
        return train, test, ClassifyImage(labels=LABELS, image_size=(SIDE, SIDE), mean=(0.2860,), std=(0.3530,))
    parts: list[Source] = []
    for name, seed, number in (("train", 0, values["images"]), ("test", 1, values["test"])):
        write = partial(write_shapes, seed=seed, progress=lambda done, total: None, count=number)
        folder = f"{place.data(f'shapes-{name}', write)}/shapes-{name}"
        drawn = Arrays(path=f"{folder}/shapes32.npz", fields={"image": "images"})
        shapes = JSONLines(path=f"{folder}/captions.jsonl.gz", columns={"label": "shape"})
        parts.append(Beside(sources=(drawn, shapes)))
    return parts[0], parts[1], ClassifyImage(labels=tuple(SHAPES), image_size=(32, 32))


def work(values: Values, place: Place) -> list[Row]:
    train, test, objective = images(values, place)
    side, channels, steps = objective.image_size[0], len(objective.mean), values["steps"]
    sizes = values["width"], values["depth"], side, channels, len(objective.labels)
    spec, plain = (matched_network(kind, *sizes) for kind in (values["kind"], "convolution"))
    run = Run(
        name="pixels",
        model=spec,
        data=Data(train=train, valid=test),
        objective=objective,
        optimizer=AdamW(lr=2e-3, weight_decay=0.05),
        schedule=Cosine(warmup=max(steps // 20, 1), floor=0.01),
        batch=Batch(examples=values["batch"]),
        steps=steps,
        seed=values["seed"],
        evaluate=Evaluate(every=steps, batches=1, patience=None),
        keep=Keep(every=steps, last=1, best=False),
    )
    times = StepTimes()
    trainer = place.train(run, times)
    return [
        {
            "accuracy": measure_accuracy(trainer),
            "seconds": 1 / times.per_second,
            "operations": count(spec).flops(1) / count(plain).flops(1),
            "parameters": count(spec).parameters,
            "labels": len(objective.labels),
        }
    ]


def measure_accuracy(trainer: Trainer) -> float:
    records, right = list(trainer.splits.valid), list[torch.Tensor]()
    with trainer.eval_mode(), trainer.autocast():
        for start in range(0, len(records), 250):
            batch = trainer.to_device(trainer.objective.collate(records[start : start + 250], 0))
            right.append(trainer.model(batch["pixel_values"]).logits.argmax(-1) == batch["labels"])
    return float(torch.cat(right).float().mean())


# -- results ----------------------------------------------------------------------------------------------------------


def by_kind(rows: Sequence[Row], field: str) -> dict[str, list[float]]:
    """Return kind -> value of every seed."""
    return {kind: [row[field] for row in rows if row["kind"] == kind] for kind in KINDS}


def claim(rows: Sequence[Row]) -> Verdict:
    accuracies, operations = by_kind(rows, "accuracy"), by_kind(rows, "operations")
    seconds = {kind: mean(each) for kind, each in by_kind(rows, "seconds").items()}
    gains = {kind: mean(accuracies[kind]) - mean(accuracies["convolution"]) for kind in KINDS[1:]}
    slower = {kind: seconds[kind] / seconds["convolution"] for kind in KINDS[1:]}
    chance = 1 / rows[0]["labels"]
    learned = min(accuracies["convolution"]) >= chance + LEARNED * (1 - chance)
    equal = all(abs(each - 1) <= 0.1 for several in operations.values() for each in several)
    return Verdict(
        equal and max(gains.values()) <= 0.01 and min(slower.values()) >= 1.5,
        {
            **{f"accuracy, {kind}": mean(each) for kind, each in accuracies.items()},
            **{f"gain over convolution, {kind}": gain for kind, gain in gains.items()},
            **{f"time of a step / convolution's, {kind}": ratio for kind, ratio in slower.items()},
            **{f"operations / convolution's, {kind}": mean(each) for kind, each in operations.items()},
            **{f"parameters, {kind}": mean(each) for kind, each in by_kind(rows, "parameters").items()},
            "accuracy by chance": chance,
        },
        learned,
    )


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(1, 1, 7, 4)
    for number, kind in enumerate(KINDS):
        points = [(1000 * row["seconds"], row["accuracy"]) for row in rows if row["kind"] == kind]
        axes[0, 0].plot(*zip(*points), "o", color=f"C{number}", label=kind)
    axes[0, 0].set(xlabel="time of a training step (ms)", ylabel="accuracy on test images",
                   title="one point per seed, equal operations", xscale="log")  # fmt: skip
    axes[0, 0].legend(frameon=False)
    axes[0, 0].grid(alpha=0.3)
    return figure
