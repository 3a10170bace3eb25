"""Conditions on the whole input (its noise level, its class), and norms and residuals that depend on them
[Peebles and Xie 2023].

B batch, N patches, D width.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.base import PartModule
from anyformer.parts.computed import Computed
from anyformer.parts.norm import LayerNorm, Norm
from anyformer.parts.residual import Residual
from anyformer.runtime.inputs import check_shape
from anyformer.specs.field_types import Count, Range
from anyformer.specs.part import Part, Site


@dataclasses.dataclass(frozen=True)
class Condition:
    """An extra of the context: condition vectors (B, D), one for all layers or one per layer."""

    vectors: tuple[Tensor, ...]

    def vector_for(self, layer: int) -> Tensor:
        return self.vectors[layer if len(self.vectors) > 1 else 0]


class Conditioned(PartModule):
    """The module of a norm or residual that takes the condition as its last input."""

    def __init__(self, site: Site, outputs: int) -> None:
        super().__init__()
        self.layer = site.layer
        self.modulate = nn.Linear(site.width, outputs * site.width)
        self.starts = {"modulate.weight": 0.0, "modulate.bias": 0.0}

    def modulation(self, condition: Condition | None) -> Tensor:
        """(B, 1, outputs D)"""
        assert condition is not None, "this module needs a condition, but the embedding of the model provides none"
        return self.modulate(F.silu(condition.vector_for(self.layer)))[:, None]


class AdaptiveNorm(Part, sees="itself", called=("adaLN", "adaLN-Zero", "FiLM", "modulation", "adaptive layer norm")):
    """A norm whose output is scaled and shifted by linear maps of the condition. The maps start at zero, so at first it
    is the plain norm."""

    requires: ClassVar[tuple[str, ...]] = ("a condition",)

    norm: Norm = LayerNorm(eps=1e-6, affine=False)


class AdaptiveNormModule(Conditioned, of=AdaptiveNorm):
    def __init__(self, part: AdaptiveNorm, site: Site) -> None:
        super().__init__(site, 2)
        self.norm = part.norm.build(site.child("norm"))

    def forward(self, x: Tensor, condition: Condition | None) -> Tensor:
        shift, scale = self.modulation(condition).chunk(2, dim=-1)
        return self.norm(x) * (1 + scale) + shift


class Gated(Residual, sees="itself", called=("adaLN-Zero",)):
    """x + a * branch, where a (one value per channel) is a linear map of the condition that starts at zero."""

    requires: ClassVar[tuple[str, ...]] = ("a condition",)

    def build(self, site: Site) -> nn.Module:
        return GatedModule(site, 1)


class GatedModule(Conditioned):
    def forward(self, x: Tensor, branch: Tensor, condition: Condition | None) -> Tensor:
        return x + self.modulation(condition) * branch


class StepAndLabel(Part, sees="itself", called=("timestep embedding", "label embedding")):
    """The condition of a noisy image: cosines and sines of the noise step through two layers, plus a learned vector per
    label. One extra label means "no label": it is used for classifier-free guidance, and if no label is given."""

    num_labels: Count | None = None  # None: the condition is only the noise step
    sines: Annotated[int, Range(at_least=4, parity="even")] = 256  # total number of cosines and sines
    per_layer: bool = False  # one embedder per layer (as diffusers stores them) instead of one for all


class ConditionModule(PartModule, of=StepAndLabel):
    def __init__(self, part: StepAndLabel, site: Site) -> None:
        super().__init__()
        self.part = part
        half = part.sines // 2
        self.frequencies = Computed(lambda: torch.exp(-math.log(10000.0) * torch.arange(half) / (half - 1)))
        count = site.depth if part.per_layer else 1
        self.embedders = nn.ModuleList(EmbedderModule(part, site.width) for _ in range(count))

    def forward(self, step: Tensor | None, labels: Tensor | None, batch: int) -> Tensor:
        """(1 or layers, B, D)"""
        if step is None or step.numel() not in (1, batch):
            shape = None if step is None else tuple(step.shape)
            raise ValueError(f"timestep must be one noise step, or one for each of {batch} images, got {shape}")
        if labels is not None and self.part.num_labels is None:
            raise ValueError("this model has no labels; omit class_labels")
        check_shape("class_labels", labels, (batch,))
        if labels is None and self.part.num_labels is not None:
            labels = torch.full((batch,), self.part.num_labels, device=step.device)
        angle = step.reshape(-1, 1).float() * self.frequencies()
        sines = torch.cat((angle.cos(), angle.sin()), dim=-1).expand(batch, -1)
        return torch.stack([embedder(sines, labels) for embedder in self.embedders])


class EmbedderModule(nn.Module):
    def __init__(self, part: StepAndLabel, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(part.sines, width), nn.Linear(width, width)
        self.label = None if part.num_labels is None else nn.Embedding(part.num_labels + 1, width)

    def forward(self, sines: Tensor, labels: Tensor | None) -> Tensor:
        x = self.down(F.silu(self.up(sines.to(self.up.weight.dtype))))
        if self.label is None or labels is None:
            return x
        try:
            return x + self.label(labels)
        except IndexError:
            bad = int(labels.max() if int(labels.max()) >= self.label.num_embeddings else labels.min())
            none = self.label.num_embeddings - 1
            raise ValueError(f"class_labels: {bad} is not valid; use 0 to {none - 1}, or {none} for no label") from None
