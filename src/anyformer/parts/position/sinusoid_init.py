"""Initialisation of learned tables with sinusoids."""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.parts.init import Initializer
from anyformer.parts.position.absolute import sinusoids


class Sines(Initializer):
    """Row n starts as the interleaved sines and cosines of position n [Vaswani et al. 2017]."""

    base: float = 10000.0

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        length, width = tensor.shape
        tensor.copy_(sinusoids(length, width, self.base, interleaved=True))
