"""Losses for the caller's labels, and one-line errors for labels of a wrong type, shape or value.

On a CPU, values are checked only after torch has rejected them.
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
    """Raise unless labels are integers of this shape; a shape (B,) may also be (B, 1)."""
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"{name} must be integers (int64), got {labels.dtype}")
    check_shape(name, labels, shape, *([(*shape, 1)] if len(shape) == 1 else []))


class Loss(NamedTuple):
    """A loss that can be summed over micro-batches and processes: its sum (fp32) and the weight to divide by."""

    sum: Tensor
    weight: Tensor | float

    @property
    def mean(self) -> Tensor:
        return self.sum / self.weight


def class_loss(logits: Tensor, labels: Tensor, name: str = "labels", ignored: int = -100) -> Loss:
    """Return the cross-entropy of scores (..., C) over labels (...) that are not `ignored`."""
    check_labels(name, labels, tuple(logits.shape[:-1]))
    labels = labels.flatten().to(logits.device, torch.long)
    try:
        total = cross_entropy_sum(logits.flatten(0, -2), labels, ignored)
    except IndexError:
        C = logits.shape[-1]
        bad = labels[(labels != ignored) & ((labels < 0) | (labels >= C))]
        raise ValueError(f"{name}: {int(bad[0])} is outside 0 to {C - 1}; use {ignored} for no label") from None
    return Loss(total, (labels != ignored).sum())


def binary_loss(logits: Tensor, labels: Tensor, counted: Tensor | None = None) -> Loss:
    """Return the binary cross-entropy of scores with labels 0 and 1, over those in `counted`; None: all."""
    each = F.binary_cross_entropy_with_logits(logits.float(), labels.float(), reduction="none")
    if counted is None:
        return Loss(each.sum(), each.numel())
    return Loss(torch.where(counted, each, 0).sum(), counted.sum())


def classification_loss(logits: Tensor, labels: Tensor, problem: Problem | None, shares: bool = False) -> Loss:
    """Return the loss of scores (B, C). If `problem` is None, it is inferred from the labels; with `shares`, labels are
    then classes (ignored if negative) or class probabilities (B, C)."""
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
    scores = logits.squeeze(-1) if problem == "regression" else logits  # (B,) or (B, C)
    check_shape("labels", labels, tuple(scores.shape), *([tuple(logits.shape)] if scores is not logits else []))
    labels = labels.view_as(scores)
    if problem == "regression":
        return Loss(F.mse_loss(scores.float(), labels.float(), reduction="sum"), labels.numel())
    return binary_loss(logits, labels)


def contrastive_loss(scores: Tensor) -> Tensor:
    """Return the sum of the losses of B pairs (InfoNCE) from scores (B, B), where row i belongs to column i: the mean
    of the cross-entropies of rows over columns and of columns over rows."""
    labels = torch.arange(len(scores), device=scores.device)
    rows, columns = (F.cross_entropy(each.float(), labels, reduction="sum") for each in (scores, scores.t()))
    return (rows + columns) / 2
