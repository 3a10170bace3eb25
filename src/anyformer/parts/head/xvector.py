"""Speaker verification: one vector per recording that identifies the speaker.

B batch, T frames, C channels of a layer, P width of the vector.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.head.base import Head, HeadModule, NamedTensors
from anyformer.parts.head.losses import Loss, check_labels, class_loss
from anyformer.parts.init import Normal
from anyformer.runtime.context import Context
from anyformer.specs.field_types import Count
from anyformer.specs.part import Site


class XVectorHead(Head, sees="all"):
    """Dilated layers over time, then mean and standard deviation of each channel over all frames [Snyder et al. 2018].
    The loss is a softmax of cosines with an additive margin [Wang et al. 2018]."""

    inputs: ClassVar[tuple[str, ...]] = ("labels",)

    num_labels: Count
    widths: tuple[Count, ...] = (512, 512, 512, 512, 1500)
    kernels: tuple[Count, ...] = (5, 3, 3, 1, 1)
    dilations: tuple[Count, ...] = (1, 2, 3, 1, 1)
    width: Count = 512  # P
    scale: float = 30.0
    margin: float = 0.4

    def check(self) -> None:
        if not len(self.widths) == len(self.kernels) == len(self.dilations) > 0:
            sizes = f"{len(self.widths)} widths, {len(self.kernels)} kernels, {len(self.dilations)} dilations"
            raise ValueError(f"XVectorHead has {sizes}; give the same number of each, at least one")

    @property
    def reach(self) -> int:
        """Receptive field of the last layer, in frames."""
        return 1 + sum((kernel - 1) * dilation for kernel, dilation in zip(self.kernels, self.dilations, strict=True))


class XVectorModule(HeadModule, of=XVectorHead):
    def __init__(self, part: XVectorHead, site: Site) -> None:
        super().__init__()
        self.part = part
        self.project = nn.Linear(site.width, part.widths[0])
        before = (part.widths[0], *part.widths)
        self.layers = nn.ModuleList(
            nn.Linear(size * kernel, out) for size, kernel, out in zip(before, part.kernels, part.widths, strict=False)
        )
        self.vector = nn.Linear(2 * part.widths[-1], part.width)
        self.out = nn.Linear(part.width, part.width)
        self.speakers = nn.Parameter(torch.empty(part.width, part.num_labels))
        self.starts = {"speakers": Normal(std=1.0)}

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        part = self.part
        if x.shape[1] < part.reach:
            raise ValueError(f"XVectorHead needs at least {part.reach} frames, got {x.shape[1]}")
        length = None if ctx.tokens is None else ctx.tokens.sum(-1)
        x = self.project(x)
        for layer, kernel, dilation in zip(self.layers, part.kernels, part.dilations, strict=True):
            n = x.shape[1] - (kernel - 1) * dilation
            x = F.relu(layer(torch.cat([x[:, i * dilation : i * dilation + n] for i in range(kernel)], dim=-1)))
            length = None if length is None else length - (kernel - 1)  # as published, whatever the dilation
        vector = self.vector(mean_and_std(x, length))
        return {"logits": self.out(vector), "embeddings": vector}

    def judge(self, outputs: NamedTensors, ctx: Context, inputs: dict[str, Any]) -> dict[str, Loss]:
        part, logits, labels = self.part, outputs["logits"], inputs.get("labels")
        if labels is None:
            return {}
        check_labels("labels", labels, (len(logits),))
        cosines = F.normalize(logits, dim=1) @ F.normalize(self.speakers, dim=0)
        own = F.one_hot(labels.flatten(), part.num_labels).bool()
        return {"loss": class_loss(part.scale * torch.where(own, cosines - part.margin, cosines), labels.flatten())}


def mean_and_std(x: Tensor, length: Tensor | None) -> Tensor:
    """Return mean and standard deviation (B, 2 C) of each channel of x (B, T, C) over the first `length` frames."""
    B, T = x.shape[:2]
    number = x.new_full((B, 1), T) if length is None else length.clamp(1, T)[:, None].to(x.dtype)
    real = (torch.arange(T, device=x.device) < number)[..., None]
    mean = torch.where(real, x, 0).sum(1) / number
    variance = torch.where(real, x - mean[:, None], 0).pow(2).sum(1) / (number - 1).clamp(min=1)
    return torch.cat((mean, variance.clamp(min=1e-30).sqrt()), dim=-1)  # one frame: almost 0, with a finite gradient
