"""Weights of classes in a loss, for data with rare classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from anyformer.specs.messages import nearest, quote


def check_class_weights(weights: Mapping[str, float], labels: Sequence[str], balanced: bool, owner: str) -> None:
    """Raise ValueError if the weights are not for these labels."""
    for label, weight in weights.items():
        if label not in labels:
            raise ValueError(f"{owner}.class_weights: no label {quote(label)}; {nearest(label, labels)}")
        if weight < 0:
            raise ValueError(f"{owner}.class_weights.{label} is {weight}; it must be at least 0")
    if weights and balanced:
        raise ValueError(f"{owner}: give class_weights or balanced, not both")
    if balanced and not labels:
        raise ValueError(f"{owner}.balanced needs labels; numbers have no classes")


def balanced_weights(counts: Mapping[str, int]) -> dict[str, float]:
    """Return weights with which every class has the same influence: examples / (classes * examples of the class), as
    in scikit-learn. A class without examples has weight 1.

    >>> balanced_weights({"spam": 25, "other": 75})
    {'spam': 2.0, 'other': 0.6666666666666666}
    """
    total, classes = sum(counts.values()), sum(count > 0 for count in counts.values())
    return {label: total / (classes * count) if count else 1.0 for label, count in counts.items()}


def weights_in_batch(labels: Tensor, weights: Mapping[str, float], names: Sequence[str]) -> dict[str, Tensor]:
    """Return "class_weight" (B,) for labels (B,), if there are weights; a class without a weight has weight 1."""
    return {"class_weight": torch.tensor([weights.get(name, 1.0) for name in names])[labels]} if weights else {}
