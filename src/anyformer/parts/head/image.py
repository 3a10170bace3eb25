"""Heads of image models: hidden states as an image, two classifiers for distillation, masked pixels.

B batch, D width.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.embedding.patches import Size
from anyformer.parts.head.base import Head, HeadModule, NamedTensors
from anyformer.parts.head.losses import Loss
from anyformer.runtime.context import Context
from anyformer.runtime.grid import Grid, as_image
from anyformer.specs.part import Site


class ImageOutput(Head):
    """The last grid as an image (B, D, rows, columns), and its mean (B, D, 1, 1), as published for ResNet."""

    requires: ClassVar[tuple[str, ...]] = ("a grid",)


class ImageOutputModule(HeadModule, of=ImageOutput):
    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        return {"last_hidden_state": as_image(x, ctx.extra(Grid)), "pooler_output": x.mean(1)[..., None, None]}


class DistilledHead(Head):
    """Two classifiers, on the class token (trained on labels) and the distillation token (trained on a teacher); the
    logits are their mean [Touvron et al. 2021]. Returns no loss, as published."""

    requires: ClassVar[tuple[str, ...]] = ("a second token",)

    num_labels: int


class DistilledModule(HeadModule, of=DistilledHead):
    def __init__(self, part: DistilledHead, site: Site) -> None:
        super().__init__()
        labels = part.num_labels
        self.out, self.distilled = (nn.Linear(site.width, labels) if labels else nn.Identity() for _ in range(2))

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        first, second = self.out(x[:, 0]), self.distilled(x[:, 1])
        return {"logits": (first + second) / 2, "cls_logits": first, "distillation_logits": second}


class PixelHead(Head):
    """Each token of the last grid predicts its `stride` x `stride` pixels. The loss is the mean absolute error over the
    patches that `bool_masked_pos` hides [Xie et al. 2022]."""

    requires: ClassVar[tuple[str, ...]] = ("an image", "a mask token")

    channels: int
    stride: int
    patch_size: Size


class PixelModule(HeadModule, of=PixelHead):
    def __init__(self, part: PixelHead, site: Site) -> None:
        super().__init__()
        self.part = part
        self.out = nn.Linear(site.width, part.stride**2 * part.channels)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        grid = ctx.extra(Grid)
        assert grid is not None
        pixels = self.out(x[:, -math.prod(grid) :]).transpose(1, 2)  # prefix tokens predict no pixels
        return {"reconstruction": F.pixel_shuffle(pixels.unflatten(2, grid), self.part.stride)}

    def judge(self, outputs: NamedTensors, ctx: Context, inputs: dict[str, Any]) -> dict[str, Loss]:
        image, pixels, masked = outputs["reconstruction"], inputs["pixel_values"], inputs.get("bool_masked_pos")
        if masked is None:
            return {}
        if image.shape != pixels.shape:
            predicted, given = tuple(image.shape[2:]), tuple(pixels.shape[2:])
            raise ValueError(
                f"no loss: the head predicts {predicted} pixels, but the image has {given}; change encoder_stride"
            )
        (height, width), (down, right) = pixels.shape[2:], self.part.patch_size
        hidden = masked.view(-1, -(-height // down), -(-width // right))
        hidden = hidden.repeat_interleave(down, 1).repeat_interleave(right, 2)[:, None, :height, :width]
        return {"loss": Loss(((pixels - image).abs() * hidden).sum() / self.part.channels, hidden.sum() + 1e-5)}
