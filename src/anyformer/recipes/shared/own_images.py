"""`anyformer train --images`: an image classifier for a folder with a folder for each class."""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from anyformer import families
from anyformer.data import Data, ImageFolder
from anyformer.inputs.image import Images
from anyformer.kernels.hardware import need
from anyformer.models import Model
from anyformer.objectives.images import ClassifyImage
from anyformer.recipes.shared.models import with_labels
from anyformer.recipes.shared.own_text import Notify, held_out, name_of
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Pretrained, Run, description_of
from anyformer.weights import hub

SPLITS = {"train": ("train", "training"), "valid": ("valid", "val", "validation", "dev", "test")}  # usual folder names
PATCHES, LARGEST = 8, 128  # patches along each side of a picture, and its pixels
CLASSIFIER = "ForImageClassification"


def from_images(path: str, model: str | None = None, *, tell: Notify = lambda line: None) -> Run:
    """A ViT for the classes of a folder, or with `model` a published one that is trained further. Where the folder has
    the folders "train" and "valid" (or "val", "test") they are the splits, else one picture in ten is held out. `tell`
    gets a line about what was found."""
    train, valid = split_folders(Path(path).expanduser())
    found = look_through(train)
    problems = f"; {found.broken:,} broken images" if found.broken else ""
    if len(found.classes) < 2:
        what = f"one class, {next(iter(found.classes))!r}" if found.classes else "no class"
        hint = "it needs a folder of images for each class, such as cats/ and dogs/"
        raise ValueError(f"{train}: {what}{problems}; {hint}")
    labels = tuple(sorted(found.classes))
    reading = from_scratch(labels, found) if model is None else further(labels, model)
    source = ImageFolder(path=str(train), channels=len(reading.mean), required=("label",))
    data = held_out(source, "label")
    if valid is not None:
        data = Data(train=source, valid=source.replace(path=str(valid)), unfit="skip")
    height, width = reading.size
    parts = [f"{len(labels)} classes", f"read as {width}x{height} pixels"]
    parts += [f"{found.broken:,} broken"] if found.broken else []
    parts += [f"{found.outside:,} outside a class folder"] if found.outside else []
    tell(f"{train}: {found.classes.total():,} images, {', '.join(parts)}")
    return image_run(data, name_of(path), labels, reading, found.classes.total())


def split_folders(root: Path) -> tuple[Path, Path | None]:
    """The folder to train on, and the one for validation where there is one."""
    if not root.is_dir():
        raise ValueError(f"{root}: no such folder; --images takes a folder with a folder of images for each class")
    there = {each.name.lower(): each for each in sorted(root.iterdir()) if each.is_dir()}
    train, valid = (next((there[n] for n in names if n in there), None) for names in SPLITS.values())
    others = there.keys() - {name for names in SPLITS.values() for name in names}
    return (root, None) if train is None or others else (train, valid)


class Found(NamedTuple):
    """What is in a folder of images."""

    classes: Counter[str]  # images that can be opened, by class
    sides: list[int]  # the shorter side of each, in pixels
    channels: int  # 1 where all are grey
    broken: int
    outside: int  # right below the folder, so in no class


def look_through(folder: Path) -> Found:
    """By the beginning of every file: its pixels are not read."""
    Image = need("PIL.Image", "data", "a folder of images")
    classes, sides, grey, broken, outside = Counter[str](), list[int](), True, 0, 0
    for file in ImageFolder(path=str(folder)).files():
        try:
            with Image.open(file) as image:
                size, mode = image.size, image.mode
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            broken += 1
            continue
        if file.parent == folder:
            outside += 1
            continue
        classes[file.parent.name] += 1
        sides.append(min(size))
        grey &= mode in ("1", "L")
    return Found(classes, sides, 1 if grey else 3, broken, outside)


def picture_side(sides: list[int]) -> int:
    """In pixels: the usual shorter side, up to LARGEST, and a multiple of PATCHES."""
    return -(-min(int(statistics.median(sides)), LARGEST) // PATCHES) * PATCHES


class Reading(NamedTuple):
    """A model, and the pictures that it reads."""

    model: Model | Pretrained
    size: tuple[int, int]  # height, width
    mean: tuple[float, ...]  # one a channel
    std: tuple[float, ...]
    lr: float
    shift: int = 0


def from_scratch(labels: tuple[str, ...], found: Found) -> Reading:
    """A small ViT for pictures of the size and the channels that most of them have."""
    side, half = picture_side(found.sides), (0.5,) * found.channels
    model = families.find("vit").read(
        {
            "architectures": [f"ViT{CLASSIFIER}"],
            "image_size": side,
            "patch_size": side // PATCHES,
            "num_channels": found.channels,
            "hidden_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 512,
            "id2label": {str(i): label for i, label in enumerate(labels)},
            "label2id": {label: i for i, label in enumerate(labels)},
        }
    )
    return Reading(model, (side, side), half, half, lr=1e-3, shift=side // 16)


def further(labels: tuple[str, ...], model: str) -> Reading:
    """A model that was trained before, or a description, which reads pictures of its own size and colours."""
    given = with_labels(model, labels, CLASSIFIER)
    trained = isinstance(given, Pretrained)
    folder = hub.resolve(model) if trained else None
    embedding: Any = getattr(description_of(given), "embedding", None)
    images = Images.load(folder) if folder is not None and Images.has_settings(folder) else Images()
    mean, std = (
        tuple(value) if isinstance(value, tuple) else (value,) * embedding.channels
        for value in (images.image_mean, images.image_std)
    )
    return Reading(given, embedding.image_size, mean, std, lr=5e-5 if trained else 1e-3)


def image_run(data: Data, name: str, labels: tuple[str, ...], reading: Reading, count: int) -> Run:
    steps = min(max(10 * count // 32, 100), 5000)  # ten times through the images, within reason
    return Run(
        name=name,
        model=reading.model,
        data=data,
        objective=ClassifyImage(
            labels=labels, image_size=reading.size, mean=reading.mean, std=reading.std, shift=reading.shift
        ),
        optimizer=AdamW(lr=reading.lr, weight_decay=0.05),
        schedule=Cosine(warmup=steps // 10),
        batch=Batch(examples=32),
        steps=steps,
        keep=Keep(every=max(steps // 4, 1)),
        evaluate=Evaluate(every=max(steps // 4, 1), metrics=("accuracy",)),
    )
