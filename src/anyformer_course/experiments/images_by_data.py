"""Images by data: the accuracy of a ResNet and a ViT by the number of training images.

The task is to classify which of eight shapes a drawn picture shows or, with a folder that contains fashion_mnist
(`--data`), which garment. A smaller training set is a subset of every larger one. Each training continues until its
accuracy on held-out images has not risen for PATIENCE evaluations, at a constant rate and without augmentation. The
result is the accuracy on test images at the best evaluation. Convolutions assume that neighbouring pixels belong
together, which a ViT must learn. The lectures say that a ViT needs more images, and is ahead with enough images
[Dosovitskiy et al. 2021, figure 4]. The second half needs more images than this experiment has, so the claim is about
the first half and the shrinking lead. The verdict also reports the size at which the ViT overtakes, if there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from anyformer import families
from anyformer.counting import count
from anyformer.data import Arrays, Beside, Data, First, Held, JSONLines, Source
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.trials import Place, Row, Trial, Values
from anyformer.look import figures
from anyformer.models import Model
from anyformer.objectives.images import ClassifyImage
from anyformer.parts.embedding.convolution import ConvolutionEmbedding
from anyformer.parts.grid.convolution import Convolution
from anyformer.recipes.fashion_mnist import LABELS, SIDE, pictures
from anyformer.specs.codec import override
from anyformer.train.optim import AdamW, Constant
from anyformer.train.run import Batch, Evaluate, Keep, Run
from anyformer.train.trainer import Callback, Trainer
from anyformer_course.data.drawings import SHAPES, write_shapes
from anyformer_course.lab.runs import mean

CLAIM = (
    "with every seed the ResNet is more accurate with the fewest images, and with the most images its lead is at most "
    "half as large"
)
FORMS = {
    "tiny": Form(0.2, 0.1, {"sizes": [40, 80], "width": 16, "depth": 1, "steps": 2, "every": 1, "test": 50}),
    "small": Form(3, 1, {"sizes": [100, 400, 1600], "width": 48, "depth": 2, "steps": 500, "every": 50, "seeds": 3}),
    "full": Form(
        600,
        20,
        {"sizes": [100, 1000, 10000, 50000], "width": 192, "depth": 6, "steps": 20000, "every": 500, "seeds": 3},
    ),
}
KINDS, PATIENCE = ("resnet", "vit"), 4


def trials(
    sizes: list[int],
    width: int,
    depth: int,
    steps: int,
    every: int,
    test: int = 1000,
    seeds: int = 1,
    data: str | None = None,
) -> list[Trial]:
    """Return a trial per kind, size and seed. `test` images decide when to stop, and as many measure the accuracy."""
    same: Values = {"width": width, "depth": depth, "steps": steps, "every": every, "test": test}
    same |= {"most": max(sizes), "data": data}
    return [
        Trial(f"{kind}-{size}-seed-{seed}", {"kind": kind, "images": size, **same, "seed": seed})
        for kind in KINDS
        for size in sizes
        for seed in range(seeds)
    ]


def check_data(path: str) -> None:
    if not (Path(path) / "fashion_mnist").is_dir():
        raise ValueError(f"--data {path}: no folder fashion_mnist in it; run `anyformer fetch fashion-mnist`")


def model_spec(kind: str, width: int, depth: int, side: int, channels: int, labels: Sequence[str]) -> Model:
    """Return a ViT with patches of 8 x 8 (4 x 4 if 8 does not divide the side), or a ResNet of three stages."""
    names = {
        "id2label": {str(i): name for i, name in enumerate(labels)},
        "label2id": {n: i for i, n in enumerate(labels)},
    }
    if kind == "vit":
        shape: dict[str, Any] = {
            "hidden_size": width,
            "num_hidden_layers": depth,
            "num_attention_heads": max(width // 16, 1),
        }
        image = {"image_size": side, "patch_size": 8 if side % 8 == 0 else 4, "num_channels": channels}
        vit = {"architectures": ["ViTForImageClassification"], **shape, "intermediate_size": 4 * width, **image}
        return families.find("vit").read({**vit, **names})
    first = max(width // 3, 4)
    stages: dict[str, Any] = {
        "embedding_size": first,
        "hidden_sizes": [first, 2 * first, 4 * first],
        "depths": [max(depth // 2, 1)] * 3,
    }
    config: dict[str, Any] = {
        "architectures": ["ResNetForImageClassification"],
        "layer_type": "basic",
        **stages,
        **names,
    }
    stem = ConvolutionEmbedding(layers=(Convolution(stride=2),), pool=None, channels=channels, image_size=(side, side))
    return override(families.find("resnet").read(config), {"embedding": stem})


class Converge(Callback):
    """Stops when the accuracy on held-out images no longer rises. Stores the test accuracy at the best evaluation."""

    def __init__(self, test: Source) -> None:
        self.test, self.held, self.accuracy, self.step, self.waited = test, -1.0, 0.0, 0, 0

    def on_start(self, trainer: Trainer) -> None:
        encode: Any = trainer.objective.encode
        tests = [encode(row.example, None) for row in self.test.rows(trainer.objective.columns)]
        self.parts = [
            [trainer.objective.collate(each[i : i + 250], 0) for i in range(0, len(each), 250)]
            for each in (list(trainer.splits.valid), tests)
        ]

    def on_evaluate(self, trainer: Trainer, scores: dict[str, float]) -> None:
        held, other = (accuracy(trainer, each) for each in self.parts)
        self.waited = 0 if held > self.held else self.waited + 1
        if not self.waited:
            self.held, self.accuracy, self.step = held, other, trainer.step
        if self.waited >= PATIENCE:
            trainer.stop("accuracy on held-out images no longer rises")


def accuracy(trainer: Trainer, batches: Sequence[Any]) -> float:
    with trainer.eval_mode(), trainer.autocast():
        moved = map(trainer.to_device, batches)
        right = [trainer.model(batch["pixel_values"]).logits.argmax(-1) == batch["labels"] for batch in moved]
    return float(torch.cat(right).float().mean())


def images(values: Values, place: Place) -> tuple[Source, Source, ClassifyImage]:
    """Return the training images, the held-out images, and the objective that reads them."""
    if values["data"] is not None:
        objective = ClassifyImage(labels=LABELS, image_size=(SIDE, SIDE), mean=(0.2860,), std=(0.3530,))
        return pictures(values["data"], "train"), pictures(values["data"], "t10k"), objective
    parts: list[Source] = []
    for name, seed, number in (("train", 0, values["most"]), ("held-out", 1, 2 * values["test"])):
        write = partial(write_shapes, seed=seed, progress=lambda done, total: None, count=number)
        folder = f"{place.data(f'shapes-{name}', write)}/shapes-{name}"
        drawn = Arrays(path=f"{folder}/shapes32.npz", fields={"image": "images"})
        labels = JSONLines(path=f"{folder}/captions.jsonl.gz", columns={"label": "shape"})
        parts.append(Beside(sources=(drawn, labels)))
    return parts[0], parts[1], ClassifyImage(labels=tuple(SHAPES), image_size=(32, 32))


def work(values: Values, place: Place) -> list[Row]:
    train, held, objective = images(values, place)
    side, channels = objective.image_size[0], 1 if values["data"] else 3
    spec = model_spec(values["kind"], values["width"], values["depth"], side, channels, objective.labels)
    steps = values["steps"]
    held = First(source=held, count=2 * values["test"], seed=0)
    run = Run(
        name="images-by-data",
        model=spec,
        data=Data(train=First(source=train, count=values["images"], seed=0), valid=Held(source=held, one_in=2)),
        objective=objective,
        optimizer=AdamW(lr=1e-3, weight_decay=0.05),
        schedule=Constant(warmup=20),  # the number of steps is not known in advance
        batch=Batch(examples=32 if place.device == "cpu" else 128),
        steps=steps,
        seed=values["seed"],
        evaluate=Evaluate(every=values["every"], batches=1, patience=None),
        keep=Keep(every=steps, last=1, best=False),
    )
    watch = Converge(Held(source=held, one_in=2, out=True))
    trainer = place.train(run, watch)
    result = {"accuracy": watch.accuracy, "best step": watch.step, "stopped": trainer.step < steps}
    return [{**result, "parameters": count(spec).parameters, "flops": count(spec).flops(1)}]


# -- results ----------------------------------------------------------------------------------------------------------


def accuracies(rows: Sequence[Row], kind: str) -> dict[int, list[float]]:
    """Return number of images -> accuracy of every seed."""
    by_size: dict[int, list[float]] = {}
    for row in rows:
        if row["kind"] == kind:
            by_size.setdefault(row["images"], []).append(row["accuracy"])
    return by_size


def claim(rows: Sequence[Row]) -> Verdict:
    resnet, vit = (accuracies(rows, kind) for kind in KINDS)
    leads = {size: [a - b for a, b in zip(resnet[size], vit[size], strict=True)] for size in resnet}
    fewest, *_, most = leads.values()
    shrinks = all(last <= first / 2 for first, last in zip(fewest, most, strict=True))
    ahead = [size for size, each in leads.items() if mean(each) < 0]
    every = {
        (kind, size): mean(each) for size in leads for kind, each in (("ResNet", resnet[size]), ("ViT", vit[size]))
    }
    return Verdict(
        min(fewest) > 0 and shrinks,
        {
            **{f"accuracy, {kind}, {size:,} images": value for (kind, size), value in every.items()},
            **{
                f"lead of the ResNet, {size:,} images": ", ".join(f"{e:.3f}" for e in each)
                for size, each in leads.items()
            },
            "they cross at": f"{ahead[0]:,} images" if ahead else "no size tried",
            "trainings that converged": f"{sum(row['stopped'] for row in rows)} of {len(rows)}",
        },
    )


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 1, 10, 4)
    for number, (kind, label) in enumerate(zip(KINDS, ("ResNet", "ViT"), strict=True)):
        by_size = accuracies(rows, kind)
        axes[0, 0].plot([*by_size], [mean(each) for each in by_size.values()], color=f"C{number}", label=label)
        points = [(size, value) for size, each in by_size.items() for value in each]
        axes[0, 0].plot(*zip(*points), "o", markersize=4, color=f"C{number}")
        best = [(row["images"], row["best step"]) for row in rows if row["kind"] == kind]
        axes[0, 1].plot(*zip(*best), "o", markersize=4, color=f"C{number}", label=label)
    for axis, title in zip(axes[0], ("accuracy on new images, one point per seed", "best step"), strict=True):
        axis.set(xscale="log", xlabel="training images", title=title)
        axis.legend(frameon=False)
        axis.grid(alpha=0.3)
    return figure
