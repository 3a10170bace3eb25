"""Regression in context [Garg et al. 2022]: every example is another linear function, given by noisy values only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.generation.random_state import mix, normal
from anyformer.models.base import TransformerModule
from anyformer.objectives.examples import field
from anyformer.objectives.objective import Batch, Objective, Record, head_of, scalars
from anyformer.parts.embedding.regression_pairs import KINDS, PairEmbedding
from anyformer.parts.head.regression import PairModule
from anyformer.specs.checks import at_least


class Regress(Objective):
    """Column "number", which with chance decides what is drawn, on the device: a function beta ~ N(0, I / width),
    points x ~ N(0, I) and values beta x + N(0, noise^2). The value at each point is predicted from the 0 to
    `context` pairs before it."""

    width: int = 5
    context: int = 40
    noise: float = 0.5

    def check(self) -> None:
        at_least(self, 1, "width", "context")
        at_least(self, 0, "noise")

    @property
    def columns(self) -> tuple[str, ...]:
        return ("number",)

    @property
    def draws(self) -> bool:
        return True

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        return {"number": np.asarray(field(example, "number"), dtype=np.int64)}

    def size(self, record: Record) -> int:
        return KINDS * (self.context + 1)

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        return {"number": scalars(records, "number")}

    def module(self, model: TransformerModule) -> nn.Module:
        head_of(model, PairModule, "regression in context")
        embedding = model.spec.embedding
        assert isinstance(embedding, PairEmbedding), "a PairHead needs points"
        if embedding.point_width != self.width:
            width = embedding.point_width
            raise ValueError(f"objective.width is {self.width}, and the model reads points of {width} numbers")
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(len(batch["number"]) * (self.context + 1))}

    def losses(self, trained: Any, batch: Batch) -> dict[str, Tensor]:
        return super().losses(trained, self.draw(seeds_of(batch)))

    @torch.no_grad()
    def draw(self, seeds: Tensor) -> Batch:
        """(B,) -> "points" (B, context + 1, width) and "values" (B, context + 1)."""
        N, P = self.context + 1, self.width
        beta, points, noise = normal(seeds, P + N * P + N).split((P, N * P, N), dim=1)
        points = points.view(-1, N, P)
        values = (points * beta[:, None]).sum(-1) / math.sqrt(P)  # no product, which half precision would round
        return {"points": points, "values": values + self.noise * noise}


def seeds_of(batch: Batch) -> Tensor:
    """(B,) what each example is drawn by."""
    return mix(batch["seeds"]) + batch["number"]
