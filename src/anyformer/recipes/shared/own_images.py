"""`anyformer train --images`: an image classifier for a folder that contains one folder per class."""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from anyformer import families
from anyformer.data import Data, ImageFolder
from anyformer.inputs.image import Images
from anyformer.inputs.optional_library import import_optional
from anyformer.models import Model
from anyformer.objectives.images import ClassifyImage
from anyformer.recipes.shared.encoder import label_fields
from anyformer.recipes.shared.held_out import Notify, divide_steps, held_out, name_of
from anyformer.recipes.shared.models import with_labels
from anyformer.specs.addresses import value_at
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Pretrained, Run, description_of
from anyformer.weights import hub

SPLITS = {"train": ("train", "training"), "valid": ("valid", "val", "validation", "dev", "test")}  # usual folder names
PATCHES, LARGEST = 8, 128  # patches per side of an image, and the most pixels per side
CLASSIFIER = "ForImageClassification"


def from_images(path: str, model: str | None = None, *, tell: Notify = lambda line: None) -> Run:
    """Return a run that trains a ViT on the classes of a folder, or fine-tunes `model`. If the folder contains "train"
    and "valid" (or "val", "test"), they are the splits; otherwise one image in ten is held out. `tell` receives a line
    that describes the data."""
    train, valid = split_folders(Path(path).expanduser())
    contents = count_images(train)
    problems = f"; {contents.broken:,} broken images" if contents.broken else ""
    if len(contents.classes) < 2:
        number = f"one class, {next(iter(contents.classes))!r}" if contents.classes else "no class"
        hint = "expected one folder of images per class, such as cats/ and dogs/"
        raise ValueError(f"{train}: {number}{problems}; {hint}")
    labels = tuple(sorted(contents.classes))
    setup = from_scratch(labels, contents) if model is None else fine_tuned(labels, model)
    source = ImageFolder(path=str(train), channels=len(setup.mean), required=("label",))
    data = held_out(source, "label")
    if valid is not None:
        data = Data(train=source, valid=source.replace(path=str(valid)), unfit="skip")
    height, width = setup.size
    parts = [f"{len(labels)} classes", f"read as {width}x{height} pixels"]
    parts += [f"{contents.broken:,} broken"] if contents.broken else []
    parts += [f"{contents.outside:,} outside a class folder"] if contents.outside else []
    tell(f"{train}: {contents.classes.total():,} images, {', '.join(parts)}")
    return image_run(data, name_of(path), labels, setup, contents.classes.total())


def split_folders(root: Path) -> tuple[Path, Path | None]:
    """Return the folder to train on, and the one for validation if it exists."""
    if not root.is_dir():
        raise ValueError(f"{root}: no such folder; --images takes a folder with one folder of images per class")
    folders = {each.name.lower(): each for each in sorted(root.iterdir()) if each.is_dir()}
    train, valid = (next((folders[n] for n in names if n in folders), None) for names in SPLITS.values())
    others = folders.keys() - {name for names in SPLITS.values() for name in names}
    return (root, None) if train is None or others else (train, valid)


class Contents(NamedTuple):
    """Statistics of a folder of images."""

    classes: Counter[str]  # class -> number of images that can be opened
    sides: list[int]  # the shorter side of each image, in pixels
    channels: int  # 1 if all images are grey, otherwise 3
    broken: int
    outside: int  # images that are not in a class folder


def count_images(folder: Path) -> Contents:
    """Count the images of a folder. Only the beginning of each file is read, not its pixels."""
    Image = import_optional("PIL.Image", "data", "a folder of images")
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
    return Contents(classes, sides, 1 if grey else 3, broken, outside)


def picture_side(sides: list[int]) -> int:
    """Return the side of the model's images in pixels: the median side, at most LARGEST, a multiple of PATCHES."""
    return -(-min(int(statistics.median(sides)), LARGEST) // PATCHES) * PATCHES


class Setup(NamedTuple):
    """A model, and the images that it reads."""

    model: Model | Pretrained
    size: tuple[int, int]  # height, width
    mean: tuple[float, ...]  # one value per channel
    std: tuple[float, ...]
    lr: float
    shift: int = 0


def from_scratch(labels: tuple[str, ...], contents: Contents) -> Setup:
    """Return a small ViT for the median size and the channels of the images."""
    side, half = picture_side(contents.sides), (0.5,) * contents.channels
    model = families.find("vit").read(
        {
            "architectures": [f"ViT{CLASSIFIER}"],
            "image_size": side,
            "patch_size": side // PATCHES,
            "num_channels": contents.channels,
            "hidden_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 512,
            **label_fields(labels),
        }
    )
    return Setup(model, (side, side), half, half, lr=1e-3, shift=side // 16)


def fine_tuned(labels: tuple[str, ...], model: str) -> Setup:
    """Return a pretrained model or a description, with its own image size and channels."""
    given = with_labels(model, labels, CLASSIFIER)
    trained = isinstance(given, Pretrained)
    folder = hub.resolve(model) if trained else None
    embedding: Any = value_at(description_of(given), "embedding")
    images = Images.load(folder) if folder is not None and Images.has_settings(folder) else Images()
    mean, std = (
        tuple(value) if isinstance(value, tuple) else (value,) * embedding.channels
        for value in (images.image_mean, images.image_std)
    )
    return Setup(given, embedding.image_size, mean, std, lr=5e-5 if trained else 1e-3)


def image_run(data: Data, name: str, labels: tuple[str, ...], setup: Setup, count: int) -> Run:
    run = Run(
        name=name,
        model=setup.model,
        data=data,
        objective=ClassifyImage(
            labels=labels, image_size=setup.size, mean=setup.mean, std=setup.std, shift=setup.shift
        ),
        optimizer=AdamW(lr=setup.lr, weight_decay=0.05),
        schedule=Cosine(),
        batch=Batch(examples=32),
        steps=min(max(10 * count // 32, 100), 5000),  # ten epochs, between 100 and 5000 steps
        evaluate=Evaluate(metrics=("accuracy",)),
    )
    return divide_steps(run)
