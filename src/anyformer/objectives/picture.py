"""Pictures as they are trained on, and a label for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.check import at_least, chance
from anyformer.inputs.image import Images
from anyformer.model.base import TransformerModule
from anyformer.objectives.examples import field, label_of
from anyformer.objectives.objective import Batch, Objective, Read, Record, head_of, logits_of, scalars
from anyformer.parts.head import ClassifyModule


class Pictures(Objective):
    """Column "image", whatever `Images` reads. Pictures are scaled to `image_size` once; each time they are seen they
    may be mirrored (`flip` is the chance) and moved by up to `shift` pixels, with zeros where nothing was."""

    image_size: tuple[int, int]  # height, width
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)  # one a channel
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    flip: float = 0.0
    shift: int = 0

    def check(self) -> None:
        if min(self.image_size) < 1 or len(self.mean) != len(self.std) or len(self.mean) not in (1, 3):
            needed = "a size of at least one pixel, and mean and std of 1 channel (grey) or 3"
            raise ValueError(f"{type(self).__name__}: {needed}")
        at_least(self, 0, "shift")
        chance(self, "flip")

    @property
    def images(self) -> Images:
        """How pictures are made ready for the model that is trained."""
        size = {"height": self.image_size[0], "width": self.image_size[1]}
        return Images(size=size, image_mean=self.mean, image_std=self.std, do_convert_rgb=len(self.mean) == 3)

    def write_settings(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        self.images.save(folder)
        return folder

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        return {"pixels": self.images.scaled(field(example, "image")).reshape(-1)}

    def size(self, record: Record) -> int:
        return 1  # pictures are all as large as each other

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        pixels = record["pixels"].reshape(-1, *self.image_size)
        if self.flip and random.random() < self.flip:
            pixels = pixels[..., ::-1]
        if self.shift:
            down, right = random.integers(0, 2 * self.shift + 1, 2)
            around = np.pad(pixels, ((0, 0), (self.shift, self.shift), (self.shift, self.shift)))
            pixels = around[:, down : down + self.image_size[0], right : right + self.image_size[1]]
        return {**record, "pixels": pixels.reshape(-1)}

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        pixels = torch.from_numpy(np.stack([record["pixels"] for record in records]))
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        pixels = (pixels.view(len(records), -1, *self.image_size).double() / 255).float()
        return {"pixel_values": (pixels - mean) / std}

    def fits(self, embedding: Any) -> None:
        """ValueError where a model reads other pictures."""
        channels = len(self.mean)
        if "an image" not in embedding.gives or embedding.channels != channels:
            raise ValueError(f"pictures of {channels} channels need a PatchEmbedding(channels={channels})")


class ClassifyImage(Pictures):
    """Also a column "label": one of `labels`, by name or number."""

    labels: tuple[str, ...]
    smoothing: float = 0.0  # of the labels

    def check(self) -> None:
        super().check()
        if len(self.labels) < 2 or len(set(self.labels)) < len(self.labels):
            raise ValueError("ClassifyImage.labels: two labels or more, and none twice")
        chance(self, "smoothing")

    @property
    def columns(self) -> tuple[str, ...]:
        return ("image", "label")

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        label = np.asarray(label_of(example, "label", self.labels), np.int64)
        return {**super().encode(example, tokenizer), "label": label}

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        return {**super().collate(records, pad), "labels": scalars(records, "label")}

    def module(self, model: TransformerModule) -> nn.Module:
        head = head_of(model, ClassifyModule, "classification")
        if head.num_labels != len(self.labels):
            raise ValueError(f"{len(self.labels)} labels, and the model tells {head.num_labels} apart")
        self.fits(model.spec.embedding)
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(len(batch["labels"]))}

    def judge(self, model: TransformerModule, batch: Batch, seen: Read) -> dict[str, Tensor]:
        logits = logits_of(model, seen)
        return {"loss": F.cross_entropy(logits, batch["labels"], reduction="sum", label_smoothing=self.smoothing)}
