"""Objectives on images: the base classes with their augmentation, and classification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.inputs.image import Images
from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record, scalars
from anyformer.objectives.class_weights import balanced_weights, check_class_weights, weights_in_batch
from anyformer.objectives.examples import field, label_of
from anyformer.objectives.heads import head_of, logits_of
from anyformer.objectives.metrics import LABELS, TWO_LABELS, Metrics
from anyformer.objectives.objective import Baseline, Example, HeadInputs, Objective, Predictions, Predictor
from anyformer.parts.head.classify import ClassifyModule
from anyformer.specs.field_types import Chance, Natural
from anyformer.specs.messages import quote
from anyformer.specs.part import Table

NUM_RANDOM = 8  # random numbers in [0, 1) that are drawn each time an image is seen


class Pictures(Objective, abstract=True):
    """Column "image", in any form that `Images` reads. Images are resized to `image_size` once. Each time an image is
    seen, it is mirrored with probability `flip` and shifted by up to `shift` pixels, padded with zeros."""

    image_size: tuple[int, int]  # height, width
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)  # one value per channel
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    flip: Chance = 0.0
    shift: Natural = 0

    def check(self) -> None:
        if min(self.image_size) < 1 or len(self.mean) != len(self.std) or len(self.mean) not in (1, 3):
            name = type(self).__name__
            raise ValueError(f"{name}: image_size must be positive, and mean and std must have 1 (grey) or 3 values")

    @property
    def images(self) -> Images:
        """The image processor of the trained model."""
        size = {"height": self.image_size[0], "width": self.image_size[1]}
        return Images(size=size, image_mean=self.mean, image_std=self.std, do_convert_rgb=len(self.mean) == 3)

    def write_settings(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        self.images.save(folder)
        return folder

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        return {"pixels": self.images.resize(field(example, "image")).reshape(-1)}

    def size(self, record: Record) -> int:
        return 1  # all images have the same size

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        """Draw random numbers; `collate` applies them to the whole batch."""
        return {**record, "chance": random.random(NUM_RANDOM, np.float32)}

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        B, C, (H, W) = len(records), len(self.mean), self.image_size
        pixels = torch.from_numpy(np.stack([record["pixels"] for record in records])).view(B, C, H, W)
        if "chance" in records[0] and (self.flip or self.shift):
            pixels = self.shift_and_flip(pixels, chances(records))
        return {"pixel_values": normalize(pixels, self.mean, self.std)}

    def shift_and_flip(self, pixels: Tensor, chance: Tensor) -> Tensor:
        """Mirror and shift images (B, C, H, W) at random."""
        B, C, H, W = pixels.shape
        down, right = ((chance[:, i : i + 1] * (2 * self.shift + 1)).long() for i in (1, 2))
        rows, columns = torch.arange(H) + down, torch.arange(W) + right  # (B, H), (B, W) indices into the padded image
        columns = torch.where(chance[:, :1] < self.flip, W - 1 + 2 * self.shift - columns, columns)
        indices = rows[:, :, None] * (W + 2 * self.shift) + columns[:, None, :]  # (B, H, W)
        padded = F.pad(pixels, (self.shift,) * 4).flatten(2)
        return padded.gather(2, indices.view(B, 1, H * W).expand(-1, C, -1)).view(B, C, H, W)

    def check_embedding(self, embedding: Any) -> None:
        """Raise ValueError if the model reads images with a different number of channels."""
        channels = len(self.mean)
        if "an image" not in embedding.gives or embedding.channels != channels:
            raise ValueError(f"images with {channels} channels need a PatchEmbedding(channels={channels})")


class LabelledPictures(Pictures, abstract=True):
    """Columns "image" and "label", which is one of `labels`, by name or index."""

    fewest: ClassVar[tuple[int, str]] = (1, "one label")
    columns: ClassVar[tuple[str, ...]] = ("image", "label")

    labels: tuple[str, ...]

    def check(self) -> None:
        super().check()
        least, words = self.fewest
        if len(self.labels) < least or len(set(self.labels)) < len(self.labels):
            raise ValueError(f"{type(self).__name__}.labels needs at least {words}, all different")

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        label = np.asarray(label_of(example, "label", self.labels), np.int64)
        return {**super().encode(example, tokenizer), "label": label}


class ClassifyImage(LabelledPictures):
    """Columns "image" and "label": which of `labels` an image shows. In training, with probability `cut` a box is
    pasted from another image of the batch, whose label then counts by the box's share of the image [Yun et al. 2019];
    with probability `erase` a box is set to zero [Zhong et al. 2020]."""

    command: ClassVar[str] = "run classify-image RUN FILE"

    fewest: ClassVar[tuple[int, str]] = (2, "two labels")

    smoothing: Chance = 0.0  # label smoothing
    cut: Chance = 0.0  # probability of CutMix
    erase: Chance = 0.0  # probability of random erasing
    class_weights: Mapping[str, float] = Table()  # label -> weight; default 1
    balanced: bool = False  # weights from the training data: all labels count equally

    def check(self) -> None:
        super().check()
        check_class_weights(self.class_weights, self.labels, self.balanced, type(self).__name__)
        if self.cut and (self.class_weights or self.balanced):
            raise ValueError("ClassifyImage: class weights cannot be combined with cut, which mixes two labels")

    @property
    def plain(self) -> Self:
        return self.replace(smoothing=0.0, class_weights={}, balanced=False)

    def with_class_counts(self, counts: Mapping[str, int]) -> Self:
        return self.replace(class_weights=balanced_weights(counts), balanced=False) if self.balanced else self

    @property
    def metrics(self) -> Metrics:
        return TWO_LABELS if len(self.labels) == 2 else LABELS

    @property
    def baseline(self) -> Baseline | None:
        return None if self.smoothing else "labels"

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        labels = scalars(records, "label")
        batch = {**super().collate(records, pad), "labels": labels}
        batch |= weights_in_batch(labels, self.class_weights, self.labels)
        return {**batch, "chance": chances(records)} if (self.cut or self.erase) and "chance" in records[0] else batch

    def module(self, model: TransformerModule) -> nn.Module:
        head = head_of(model, ClassifyModule, "classification")
        if head.num_labels != len(self.labels):
            raise ValueError(f"{len(self.labels)} labels in the objective, {head.num_labels} in the model")
        self.check_embedding(model.spec.embedding)
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(batch["class_weight"].sum()) if self.class_weights else float(len(batch["labels"]))}

    def losses(self, trained: Any, batch: Batch) -> dict[str, Tensor]:
        return super().losses(trained, self.paste_boxes(batch) if trained.training and "chance" in batch else batch)

    def paste_boxes(self, batch: Batch) -> Batch:
        """Paste boxes from other images (CutMix) and erase boxes."""
        pixels, chance = batch["pixel_values"], batch["chance"]
        if self.cut:
            box = boxes(chance[:, 3:6], pixels.shape[2:]) & (chance[:, 6] < self.cut)[:, None, None]
            pixels = torch.where(box[:, None], pixels.roll(1, 0), pixels)
            share = box.flatten(1).float().mean(1)
            batch = {**batch, "other_labels": batch["labels"].roll(1, 0), "share": share}
        if self.erase:
            where = torch.cat((chance[:, 4:6], chance[:, 3:4]), dim=1)  # an index list would be copied from the host
            box = boxes(where, pixels.shape[2:]) & (chance[:, 7] < self.erase)[:, None, None]
            pixels = pixels.masked_fill(box[:, None], 0)
        return {**batch, "pixel_values": pixels}

    def judge(self, model: TransformerModule, batch: Batch, states: HeadInputs) -> dict[str, Tensor]:
        logits = logits_of(model, states)
        options: dict[str, Any] = {"reduction": "none", "label_smoothing": self.smoothing}
        loss = F.cross_entropy(logits, batch["labels"], **options)
        if "share" in batch:
            loss = torch.lerp(loss, F.cross_entropy(logits, batch["other_labels"], **options), batch["share"])
        if self.class_weights:
            loss = loss * batch["class_weight"]
        return {"loss": loss.sum()}

    def predict(self, job: Predictor, examples: Sequence[Example], records: Sequence[list[Record]]) -> Predictions:
        return job.labels(self, records)


def frames_of(example: Mapping[str, Any], name: str) -> Sequence[Any]:
    """Return the frames of a column, in order."""
    frames = field(example, name)
    if isinstance(frames, (str, bytes)) or not isinstance(frames, Sized) or not len(frames):
        raise ValueError(f"column {quote(name)} must be a list of images, the frames")
    return cast("Sequence[Any]", frames)


def resizer(size: tuple[int, int], channels: int) -> Images:
    """Return an image processor for resizing to `size` (height, width)."""
    return Images(size={"height": size[0], "width": size[1]}, do_convert_rgb=channels == 3)


def normalize(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Normalize bytes (N, C, ..., H, W) by the mean and standard deviation of each channel, on a scale from 0 to 1."""
    shape = (-1, *(1,) * (pixels.dim() - 2))
    means, stds = (torch.tensor(values).view(shape) for values in (mean, std))
    return pixels.float().div_(255).sub_(means).div_(stds)


def chances(records: Sequence[Record]) -> Tensor:
    """(B, NUM_RANDOM)"""
    return torch.from_numpy(np.stack([record["chance"] for record in records]))


def boxes(chance: Tensor, size: Sequence[int]) -> Tensor:
    """(B, 3) numbers in [0, 1) -> (B, H, W) True inside a box with the image's proportions. The numbers are the box's
    share of the image's area and the row and column of its centre; parts beyond the edge are cut off."""
    inside = []
    for side, middle in zip(size, chance[:, 1:].unbind(1), strict=True):
        half, middle = chance[:, 0].sqrt() * side / 2, middle * side
        pixels = torch.arange(side, device=chance.device) + 0.5
        inside.append((pixels - middle[:, None]).abs() < half[:, None])
    return inside[0][:, :, None] & inside[1][:, None, :]
