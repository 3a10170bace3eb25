"""Losses of the labels that a caller passes, and one-line errors for labels of a wrong type, shape or value.

On a CPU, values are examined only after torch has refused them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels.loss import cross_entropy_sum
from anyformer.runtime.inputs import check_shape

Problem = Literal["regression", "single_label_classification", "multi_label_classification"]


def check_labels(name: str, labels: Tensor, shape: tuple[int, ...]) -> None:
    """Whole numbers of this shape; one for each row may also be a column."""
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"{name} must be integers (int64), got {labels.dtype}")
    check_shape(name, labels, shape, *([(*shape, 1)] if len(shape) == 1 else []))


class Loss(NamedTuple):
    """A loss as it adds up over micro-batches and processes: its sum (fp32), and over how much."""

    sum: Tensor
    weight: Tensor | float

    @property
    def mean(self) -> Tensor:
        return self.sum / self.weight


def class_loss(logits: Tensor, labels: Tensor, name: str = "labels", ignored: int = -100) -> Loss:
    """Over labels (...) that are not `ignored`: how unlikely scores (..., C) find them."""
    check_labels(name, labels, tuple(logits.shape[:-1]))
    labels = labels.flatten().to(logits.device, torch.long)
    try:
        total = cross_entropy_sum(logits.flatten(0, -2), labels, ignored)
    except IndexError:
        C = logits.shape[-1]
        bad = labels[(labels != ignored) & ((labels < 0) | (labels >= C))]
        raise ValueError(f"{name}: {int(bad[0])} is outside 0 to {C - 1}; {ignored} asks for nothing") from None
    return Loss(total, (labels != ignored).sum())


def binary_loss(logits: Tensor, labels: Tensor, counted: Tensor | None = None) -> Loss:
    """Of scores whose labels are yes (1) or no (0), over those that are `counted`; default: all of them."""
    each = F.binary_cross_entropy_with_logits(logits.float(), labels.float(), reduction="none")
    if counted is None:
        return Loss(each.sum(), each.numel())
    return Loss(torch.where(counted, each, 0).sum(), counted.sum())


def classification_loss(logits: Tensor, labels: Tensor, problem: Problem | None, shares: bool = False) -> Loss:
    """Of scores (B, C); what kind of problem it is, the labels tell where the description does not. With `shares` they
    are then classes, none where below 0, or how much of each class (B, C) a row is."""
    if problem is None and shares and logits.shape[-1] > 1:
        if labels.dim() == 1 or labels.shape[-1] == 1:
            return class_loss(logits, labels.long().masked_fill(labels < 0, -100))
        check_shape("labels", labels, tuple(logits.shape))
        return Loss(-(logits.log_softmax(-1) * labels).sum(), len(labels))
    if problem is None:
        single = labels.dtype in (torch.long, torch.int)
        problem = "single_label_classification" if single else "multi_label_classification"
        problem = "regression" if logits.shape[-1] == 1 else problem
    if problem == "single_label_classification":
        return class_loss(logits, labels)
    wanted = logits.squeeze(-1) if problem == "regression" else logits  # (B,) or (B, C)
    check_shape("labels", labels, tuple(wanted.shape), *([tuple(logits.shape)] if wanted is not logits else []))
    labels = labels.view_as(wanted)
    if problem == "regression":
        return Loss(F.mse_loss(wanted.float(), labels.float(), reduction="sum"), labels.numel())
    return binary_loss(logits, labels)
