"""A classifier of images that reads the class token and the patches.

B batch, T tokens, D width.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyformer.parts.head.base import NamedTensors
from anyformer.parts.head.classify import ClassifyHead, ClassifyModule
from anyformer.runtime.context import Context
from anyformer.runtime.grid import Grid
from anyformer.specs.part import Site


class ClassAndPatchesHead(ClassifyHead, called=("linear probe",)):
    """Scores of `num_labels` classes for an image, from the pooled vector and the mean of the patches side by side
    [Oquab et al. 2023]."""

    requires: ClassVar[tuple[str, ...]] = ("an image",)


class ClassAndPatchesModule(ClassifyModule, of=ClassAndPatchesHead):
    def __init__(self, part: ClassAndPatchesHead, site: Site) -> None:
        super().__init__(part.pool, part.num_labels, part.bias, part.problem, site, part.shares)
        if part.num_labels:
            width = (part.pool.width or site.width) + site.width
            self.out = nn.Linear(width, part.num_labels, bias=part.bias)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        grid = ctx.extra(Grid)
        assert grid is not None
        patches = x[:, -math.prod(grid) :].mean(1)
        return {"logits": self.out(torch.cat((self.pool(x, ctx, inputs), patches), dim=-1))}
