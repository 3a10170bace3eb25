"""Images by data: the accuracy of a ResNet and a ViT by the number of different training images, 1,000 to 1,000,000.

Every picture shows three shapes in random sizes, places, colours and angles, and noise (`lab/drawn_scenes.py`). The
task is to name the largest shape. Convolutions assume that neighbouring pixels belong together, which a ViT must learn.
The lectures say that a ViT needs more images, and is ahead with enough images [Dosovitskiy et al. 2021, figure 4].

Every training has the same number of steps and the same batch, so only the number of different images changes: one
million are seen about once, one thousand about a thousand times. There is no augmentation. A smaller training set is
a subset of every larger one. Pictures are drawn on the device in the step that reads them, so a million costs no disk.
The result is the accuracy on test images at the evaluation that is best on held-out images. The verdict also reports
the number of images at which the ViT overtakes, if there is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer import families
from anyformer.counting import count
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.models import Model, TransformerModule
from anyformer.models.construct import build
from anyformer.parts.embedding.convolution import ConvolutionEmbedding
from anyformer.parts.grid.convolution import Convolution
from anyformer.specs.codec import override
from anyformer_course.data.drawings import SHAPES, SIDE
from anyformer_course.lab.drawn_scenes import Painter, draw_scenes
from anyformer_course.lab.runs import mean

CLAIM = (
    "with every seed the ResNet is more accurate with the fewest images, and with the most images its lead is at most "
    "half as large"
)
FORMS = {
    "tiny": Form(0.2, 0.1, {
        "sizes": [40, 80], "width": 16, "depth": 1, "steps": 4, "batch": 8, "evaluations": 2, "test": 50
    }),
    "full": Form(600, 3, {
        "sizes": [1_000, 10_000, 100_000, 1_000_000], "width": 128, "depth": 4, "steps": 2000, "batch": 512,
        "evaluations": 20, "test": 2000, "seeds": 3,
    }),
}  # fmt: skip
KINDS, PATCH = ("resnet", "vit"), 4
RATE, WARMUP, DECAY = 1e-3, 0.05, 0.05  # highest rate, share of the steps until then, weight decay
trials = TrialGrid("{kind}-{images}-seed-{seed}", kind=KINDS, images="sizes", seed="seeds")


def model_spec(kind: str, width: int, depth: int) -> Model:
    """Return a ViT with patches of 4 x 4, or a ResNet of three stages."""
    names = {
        "id2label": {str(i): name for i, name in enumerate(SHAPES)},
        "label2id": {name: i for i, name in enumerate(SHAPES)},
    }
    if kind == "vit":
        shape: dict[str, Any] = {
            "hidden_size": width,
            "num_hidden_layers": depth,
            "num_attention_heads": max(width // 16, 1),
            "intermediate_size": 4 * width,
        }
        image = {"image_size": SIDE, "patch_size": PATCH, "num_channels": 3}
        return families.find("vit").read({"architectures": ["ViTForImageClassification"], **shape, **image, **names})
    first = max(width // 3, 4)
    config: dict[str, Any] = {
        "architectures": ["ResNetForImageClassification"],
        "layer_type": "basic",
        "embedding_size": first,
        "hidden_sizes": [first, 2 * first, 4 * first],
        "depths": [max(depth // 2, 1)] * 3,
        **names,
    }
    stem = ConvolutionEmbedding(layers=(Convolution(stride=2),), pool=None, channels=3, image_size=(SIDE, SIDE))
    return override(families.find("resnet").read(config), {"embedding": stem})


# -- training ---------------------------------------------------------------------------------------------------------


def work(values: Values, place: Place) -> list[Row]:
    spec = model_spec(values["kind"], values["width"], values["depth"])
    model, painter = build(spec, seed=values["seed"]).to(place.device), Painter(place.device)
    sets = {name: draw_scenes(number, seed).to(place.device) for name, seed, number in (
        ("train", 0, values["images"]), ("held-out", 1, values["test"]), ("test", 2, values["test"])
    )}  # fmt: skip
    best: Row = {"held": -1.0}
    for step in train(model, painter, sets["train"], values, place.device):
        held = accuracy(model, painter, sets["held-out"])
        if held > best["held"]:
            best = {"held": held, "accuracy": accuracy(model, painter, sets["test"]), "best step": step}
    counted = count(spec)
    seen = accuracy(model, painter, sets["train"][: values["test"]])  # after the last step
    return [{**best, "on training images": seen, "parameters": counted.parameters, "flops": counted.flops(1)}]


def train(model: TransformerModule, painter: Painter, scenes: Tensor, values: Values, device: str) -> Any:
    """Train in batches of scenes, in a new order in every epoch; yield the step before every evaluation."""
    steps, batch = values["steps"], values["batch"]
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=DECAY, fused=device.startswith("cuda"))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_share(step, steps))
    random, order = torch.Generator().manual_seed(values["seed"]), torch.empty(0, dtype=torch.long)
    for step in range(1, steps + 1):
        while len(order) < batch:
            order = torch.cat((order, torch.randperm(len(scenes), generator=random)))
        chosen, order = scenes[order[:batch].to(scenes.device)], order[batch:]
        pictures = painter.draw(chosen)
        with torch.autocast(device.partition(":")[0], torch.bfloat16, enabled=device.startswith("cuda")):
            logits = model(pictures).logits
        torch.nn.functional.cross_entropy(logits.float(), painter.labels(chosen)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % max(steps // values["evaluations"], 1) == 0:
            yield step


def rate_share(step: int, steps: int) -> float:
    """Return the rate as a share of the highest: linear warm-up, then a cosine to 0."""
    warmup = max(round(WARMUP * steps), 1)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(steps - warmup, 1)))


@torch.no_grad()
def accuracy(model: TransformerModule, painter: Painter, scenes: Tensor) -> float:
    model.eval()
    right = [model(painter.draw(each)).logits.argmax(-1) == painter.labels(each) for each in scenes.split(500)]
    model.train()
    return float(torch.cat(right).float().mean())


# -- results ----------------------------------------------------------------------------------------------------------


def accuracies(rows: Sequence[Row], kind: str, field: str = "accuracy") -> dict[int, list[float]]:
    """Return number of images -> accuracy of every seed."""
    by_size: dict[int, list[float]] = {}
    for row in rows:
        if row["kind"] == kind:
            by_size.setdefault(row["images"], []).append(row[field])
    return by_size


def claim(rows: Sequence[Row]) -> Verdict:
    resnet, vit = (accuracies(rows, kind) for kind in KINDS)
    leads = {size: [a - b for a, b in zip(resnet[size], vit[size], strict=True)] for size in resnet}
    fewest, *_, most = leads.values()
    shrinks = all(last <= first / 2 for first, last in zip(fewest, most, strict=True))
    ahead = [size for size, each in leads.items() if mean(each) < 0]
    results: dict[str, Any] = {}
    for kind, label in zip(KINDS, ("ResNet", "ViT"), strict=True):
        for field, name in (("accuracy", "accuracy"), ("on training images", "accuracy on training images")):
            by_size = accuracies(rows, kind, field)
            results |= {f"{name}, {label}, {size:,} images": mean(each) for size, each in by_size.items()}
        results |= {f"{cost}, {label}": row[cost] for row in rows if row["kind"] == kind
                    for cost in ("parameters", "flops")}  # fmt: skip
    results |= {
        f"lead of the ResNet, {size:,} images": ", ".join(f"{e:.3f}" for e in each) for size, each in leads.items()
    }
    results["they cross at"] = f"{ahead[0]:,} images" if ahead else "no size tried"
    return Verdict(min(fewest) > 0 and shrinks, results)


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
        axis.set(xscale="log", xlabel="different training images", title=title)
        axis.legend(frameon=False)
        axis.grid(alpha=0.3)
    return figure
