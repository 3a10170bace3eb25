"""Heads with a dense layer, an activation and a norm before the scores (ModernBERT).

B batch, T tokens, D width.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.head.base import NamedTensors, Transform, TransformModule
from anyformer.parts.head.pool import Pool, PoolModule
from anyformer.parts.head.span import SpanHead, SpanModule
from anyformer.parts.head.tag import TagHead, TagModule
from anyformer.runtime.context import Context
from anyformer.specs.field_types import Chance
from anyformer.specs.part import Site


class PredictionTransform(Transform, sees="itself"):
    """norm(activation(dense(x))) and dropout, where the dense layer may have no bias (ModernBERT)."""

    bias: bool = False
    dropout: Chance = 0.0


class PredictionTransformModule(TransformModule, of=PredictionTransform):
    def __init__(self, part: PredictionTransform, site: Site) -> None:
        super().__init__(part, site)
        self.dropout = part.dropout
        if not part.bias:
            self.dense = nn.Linear(self.dense.in_features, self.dense.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return F.dropout(x, self.dropout) if self.training and self.dropout else x


class PredictionPool(Pool):
    """Pools a sequence to one vector, then applies `transform` to it."""

    transform: PredictionTransform


class PredictionPoolModule(PoolModule, of=PredictionPool):
    def __init__(self, part: PredictionPool, site: Site) -> None:
        super().__init__(part, site)
        self.transform = part.transform.build(site.child("transform", width=part.width or site.width))

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        return self.transform(super().forward(x, ctx, inputs))


class PredictionTagHead(TagHead):
    """Scores of `num_labels` labels for each token, after `transform`."""

    transform: PredictionTransform


class PredictionTagModule(TagModule, of=PredictionTagHead):
    def __init__(self, part: PredictionTagHead, site: Site) -> None:
        super().__init__(part, site)
        self.transform = part.transform.build(site.child("transform"))

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        return super().answer(self.transform(x), ctx, inputs)


class PredictionSpanHead(SpanHead):
    """Scores of the start and the end of an answer for each token, after `transform`."""

    transform: PredictionTransform


class PredictionSpanModule(SpanModule, of=PredictionSpanHead):
    def __init__(self, part: PredictionSpanHead, site: Site) -> None:
        super().__init__(part, site)
        self.transform = part.transform.build(site.child("transform"))

    def scores(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        return super().scores(self.transform(x), ctx, inputs)
