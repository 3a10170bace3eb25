"""Initializers without outliers: normal distributions that are cut off at a number of standard deviations."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from anyformer.parts.init import Initializer, Normal
from anyformer.specs.field_types import Positive


class TruncatedNormal(Normal):
    """A normal distribution without values beyond `cutoff` standard deviations."""

    cutoff: Positive = 2.0

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        std = self.std / math.sqrt(2 * depth) if self.residual else self.std
        fill_truncated(tensor, self.mean, std, self.cutoff, generator)


class TruncatedLeCun(Initializer):
    """Standard deviation 1 / sqrt(inputs) [LeCun et al. 1998], without values beyond `cutoff` standard deviations."""

    cutoff: Positive = 2.0

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        fill_truncated(
            tensor, 0.0, (tensor[0].numel() if tensor.dim() > 1 else tensor.numel()) ** -0.5, self.cutoff, generator
        )


def fill_truncated(tensor: Tensor, mean: float, std: float, cutoff: float, generator: torch.Generator) -> None:
    if std:
        nn.init.trunc_normal_(tensor, mean, std, mean - cutoff * std, mean + cutoff * std, generator=generator)
    else:
        tensor.fill_(mean)
