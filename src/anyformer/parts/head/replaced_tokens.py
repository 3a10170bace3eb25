"""Replaced token detection (ELECTRA)."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.head.base import Head, HeadModule, NamedTensors
from anyformer.parts.head.losses import Loss, binary_loss
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import check_shape
from anyformer.specs.part import Site


class DetectHead(Head):
    """One score per token for "was replaced" [Clark et al. 2020]. Labels are 0 and 1; padding does not count."""

    inputs: ClassVar[tuple[str, ...]] = ("labels",)

    activation: Activation = "gelu"


class DetectModule(HeadModule, of=DetectHead):
    def __init__(self, part: DetectHead, site: Site) -> None:
        super().__init__()
        self.dense = nn.Linear(site.width, site.width)
        self.activation = ACTIVATIONS[part.activation]
        self.out = nn.Linear(site.width, 1)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        return {"logits": self.out(self.activation(self.dense(x))).squeeze(-1)}

    def label_loss(self, logits: Tensor, labels: Tensor, ctx: Context) -> Loss:
        check_shape("labels", labels, tuple(logits.shape))
        return binary_loss(logits, labels, ctx.tokens)
