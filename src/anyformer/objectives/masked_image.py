"""SimMIM [Xie et al. 2022]: reconstruct the masked patches of an image; needs no labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record
from anyformer.objectives.heads import head_of
from anyformer.objectives.images import Pictures
from anyformer.parts.head.image import PixelModule
from anyformer.specs.field_types import Count, ProperFraction


class MaskedImage(Pictures, called=("SimMIM", "masked image modelling", "masked image modeling")):
    """Column "image". Each time an image is seen, a random `share` of its squares is masked; a square is
    `unit` x `unit` patches. The loss is the mean absolute error of the masked pixels."""

    columns: ClassVar[tuple[str, ...]] = ("image",)

    patch_size: tuple[int, int]  # as in the model
    unit: Count = 1
    share: ProperFraction = 0.6

    def check(self) -> None:
        super().check()
        if any(side % (step * self.unit) for side, step in zip(self.image_size, self.patch_size, strict=True)):
            raise ValueError(f"MaskedImage: {self.unit} patches of {self.patch_size} do not divide {self.image_size}")

    @property
    def squares(self) -> tuple[int, int]:
        """The number of rows and columns of squares."""
        (height, width), (down, right) = self.image_size, self.patch_size
        return height // (down * self.unit), width // (right * self.unit)

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        count = self.squares[0] * self.squares[1]
        hidden = np.zeros(count, np.bool_)
        hidden[random.permutation(count)[: max(round(self.share * count), 1)]] = True
        return {**super().vary(record, random), "hidden": hidden}

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        hidden = torch.from_numpy(np.stack([record["hidden"] for record in records])).view(-1, *self.squares)
        patches = hidden.repeat_interleave(self.unit, 1).repeat_interleave(self.unit, 2)
        return {**super().collate(records, pad), "bool_masked_pos": patches.flatten(1)}

    def module(self, model: TransformerModule) -> nn.Module:
        head = head_of(model, PixelModule, "masked image modelling")
        self.check_embedding(model.spec.embedding)
        if head.part.patch_size != self.patch_size:
            raise ValueError(f"MaskedImage.patch_size is {self.patch_size}, but the model's is {head.part.patch_size}")
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        """Return the number of masked pixels."""
        return {"loss": float(batch["bool_masked_pos"].sum()) * self.patch_size[0] * self.patch_size[1]}
