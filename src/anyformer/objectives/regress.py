"""In-context regression [Garg et al. 2022]: each example is a new function, given only by noisy values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.kernels.random_bits import mix, normal
from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record, scalars
from anyformer.objectives.examples import field
from anyformer.objectives.heads import head_of
from anyformer.objectives.objective import Objective
from anyformer.parts.embedding.regression_pairs import KINDS, PairEmbedding
from anyformer.parts.head.regression import PairModule
from anyformer.specs.field_types import Count, NonNegative, Positive

WAVES = 32  # per smooth function


class Regress(Objective, called=("in-context regression",)):
    """Column "number", part of the seed that draws each example on the device: a function beta ~ N(0, I / width),
    points x ~ N(0, I) and values beta x + N(0, noise^2). The value at each point is predicted from the 0 to
    `context` pairs before it. With `scale`, functions are smooth instead of linear: samples of a Gaussian process with
    covariance exp(-distance^2 / 2 scale^2), approximated by random Fourier features [Rahimi and Recht 2007]."""

    columns: ClassVar[tuple[str, ...]] = ("number",)
    draws: ClassVar[bool] = True

    width: Count = 5
    context: Count = 40
    noise: NonNegative = 0.5
    scale: Positive | None = None

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        return {"number": np.asarray(field(example, "number"), dtype=np.int64)}

    def size(self, record: Record) -> int:
        return KINDS * (self.context + 1)

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        return {"number": scalars(records, "number")}

    def module(self, model: TransformerModule) -> nn.Module:
        head_of(model, PairModule, "regression in context")
        embedding = model.spec.embedding
        assert isinstance(embedding, PairEmbedding), "a PairHead needs a PairEmbedding"
        if embedding.point_width != self.width:
            width = embedding.point_width
            raise ValueError(f"objective.width is {self.width}, but the model reads points of {width} numbers")
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(len(batch["number"]) * (self.context + 1))}

    def losses(self, trained: Any, batch: Batch) -> dict[str, Tensor]:
        return super().losses(trained, self.draw(seeds_of(batch)))

    @torch.no_grad()
    def draw(self, seeds: Tensor) -> Batch:
        """(B,) -> "points" (B, context + 1, width) and "values" (B, context + 1)."""
        N, P = self.context + 1, self.width
        drawn = P if self.scale is None else WAVES * (P + 2)
        function, points, noise = normal(seeds, drawn + N * P + N).split((drawn, N * P, N), dim=1)
        points = points.view(-1, N, P)
        values = linear(function, points) if self.scale is None else smooth(function, points, self.scale)
        return {"points": points, "values": values + self.noise * noise}


# elementwise, because autocast would compute matrix products in half precision


def linear(beta: Tensor, points: Tensor) -> Tensor:
    """(B, P), (B, N, P) -> (B, N)"""
    return (points * beta[:, None]).sum(-1) / math.sqrt(points.shape[-1])


def smooth(numbers: Tensor, points: Tensor, scale: float) -> Tensor:
    """(B, WAVES (P + 2)), (B, N, P) -> (B, N): a sum of waves with random directions, lengths and amplitudes."""
    waves = numbers.view(len(numbers), WAVES, -1)
    phase = (points[:, :, None] * waves[:, None, :, 2:]).sum(-1) / scale  # (B, N, WAVES)
    values = waves[:, None, :, 0] * phase.cos() + waves[:, None, :, 1] * phase.sin()
    return values.sum(-1) / math.sqrt(WAVES)


def seeds_of(batch: Batch) -> Tensor:
    """Return the seed (B,) of each example."""
    return mix(batch["seeds"]) + batch["number"]
