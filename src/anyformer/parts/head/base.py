"""Base classes of heads, which map the last hidden states to named outputs, and to a loss if labels are given.

B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.base import PartModule
from anyformer.parts.feedforward.balance import Balance
from anyformer.parts.head.losses import Loss, class_loss
from anyformer.parts.head.pool import Pool
from anyformer.parts.norm import Norm
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import Kind
from anyformer.specs.part import Part, Site

NamedTensors = dict[str, Tensor]


Outputs = dict[str, Tensor | None]


class Head(Part, abstract=True):
    """Base class of heads, which map the last hidden states to outputs."""

    inputs: ClassVar[tuple[str, ...]] = ()  # names of the caller's inputs that the head uses
    input_kinds: ClassVar[Mapping[str, Kind]] = {}  # kinds of inputs that runtime/inputs.py does not list
    remembers: ClassVar[bool] = True  # whether a decoder returns its cache by default, as published

    @property
    def pool(self) -> Pool | None:
        """How the head pools a sequence to one vector; None: it uses every position."""
        return None

    @property
    def num_labels(self) -> int | None:
        """Number of classes, if the head scores classes."""
        return None

    @property
    def balance(self) -> Balance | None:
        """Load-balancing losses of a mixture of experts, if the head reports them."""
        return None


class HeadModule(PartModule):
    unlisted: tuple[str, ...] = ()  # outputs that are not part of a tuple result

    def arrange(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Reshape the model's inputs before they are embedded."""
        return inputs

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        """Return named outputs for hidden states (B, T, D), without losses."""
        raise NotImplementedError

    def label_loss(self, logits: Tensor, labels: Tensor, ctx: Context) -> Loss:
        return class_loss(logits, labels)

    def judge(self, outputs: NamedTensors, ctx: Context, inputs: dict[str, Any]) -> dict[str, Loss]:
        """Return the loss terms of these outputs; empty without labels."""
        labels = inputs.get("labels")
        return {} if labels is None else {"loss": self.label_loss(outputs["logits"], labels, ctx)}

    def losses(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> dict[str, Loss]:
        """Return the loss terms, for training."""
        return self.judge(self.answer(x, ctx, inputs), ctx, inputs)

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Outputs:
        outputs = self.answer(x, ctx, inputs)
        return {"loss": total(self.judge(outputs, ctx, inputs)), **outputs}


def total(terms: Mapping[str, Loss]) -> Tensor | None:
    """Return the sum of the terms' means, the published `loss`; None if there are no terms."""
    means = [term.mean for term in terms.values()]
    return None if not means else means[0] if len(means) == 1 else torch.stack(means).sum()


# -- language models --------------------------------------------------------------------------------------------------


class Transform(Part, sees="itself"):
    """norm(activation(dense(x))) before the vocabulary scores (BERT)."""

    activation: Activation
    norm: Norm
    width: int | None = None


class TransformModule(PartModule, of=Transform):
    def __init__(self, part: Transform, site: Site) -> None:
        super().__init__()
        width = part.width or site.width
        self.dense = nn.Linear(site.width, width)
        self.activation = ACTIVATIONS[part.activation]
        self.norm = part.norm.build(site.child("norm", width=width))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))
