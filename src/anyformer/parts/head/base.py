"""Heads map the last hidden states to named outputs, with the loss where labels are given.

B batch, T tokens, D width, V vocabulary, C classes or choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.feedforward.balance import Balance
from anyformer.parts.head.losses import Loss, class_loss
from anyformer.parts.head.pool import Pool
from anyformer.parts.norm import Norm
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import Kind
from anyformer.specs.part import Part, Site

NamedTensors = dict[str, Tensor]


Outputs = dict[str, Tensor | None]


class Head(Part):
    """Reads the last hidden states. `inputs`: names that it also takes from the caller."""

    inputs: ClassVar[tuple[str, ...]] = ()
    input_kinds: ClassVar[Mapping[str, Kind]] = {}  # of inputs that are not common (runtime/inputs.py)
    remembers: ClassVar[bool] = True  # a decoder returns its cache by default, as published

    @property
    def pool(self) -> Pool | None:
        """How it makes one vector of a sequence; None: it reads every position."""
        return None

    @property
    def num_labels(self) -> int | None:
        """Number of classes, if it scores classes."""
        return None

    @property
    def balance(self) -> Balance | None:
        """Load-balancing losses of a mixture of experts, if the head reports them."""
        return None


class HeadModule(nn.Module):
    unlisted: tuple[str, ...] = ()  # outputs that are left out where a tuple is returned

    def arrange(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The model's inputs, reshaped before they are embedded."""
        return inputs

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        """Named outputs for hidden states (B, T, D), without losses."""
        raise NotImplementedError

    def label_loss(self, logits: Tensor, labels: Tensor, ctx: Context) -> Loss:
        return class_loss(logits, labels)

    def judge(self, outputs: NamedTensors, ctx: Context, inputs: dict[str, Any]) -> dict[str, Loss]:
        """The terms of the loss of these outputs; empty without labels."""
        labels = inputs.get("labels")
        return {} if labels is None else {"loss": self.label_loss(outputs["logits"], labels, ctx)}

    def losses(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> dict[str, Loss]:
        """The terms of the loss, for training."""
        return self.judge(self.answer(x, ctx, inputs), ctx, inputs)

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Outputs:
        outputs = self.answer(x, ctx, inputs)
        return {"loss": total(self.judge(outputs, ctx, inputs)), **outputs}


def total(terms: Mapping[str, Loss]) -> Tensor | None:
    """The sum of the terms' means: the published `loss`."""
    means = [term.mean for term in terms.values()]
    return None if not means else means[0] if len(means) == 1 else torch.stack(means).sum()


# -- language models --------------------------------------------------------------------------------------------------


class Transform(Part, sees="itself"):
    """norm(activation(dense(x))) before the vocabulary (BERT)."""

    activation: Activation
    norm: Norm
    width: int | None = None

    def build(self, site: Site) -> nn.Module:
        return TransformModule(self, site)


class TransformModule(nn.Module):
    def __init__(self, part: Transform, site: Site) -> None:
        super().__init__()
        width = part.width or site.width
        self.dense = nn.Linear(site.width, width)
        self.activation = ACTIVATIONS[part.activation]
        self.norm = part.norm.build(site.child("norm", width=width))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))
