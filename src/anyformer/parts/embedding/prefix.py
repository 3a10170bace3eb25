"""Learned tokens before the input: class tokens, distillation tokens, registers."""

from __future__ import annotations

import torch
from torch import nn

from anyformer.parts.base import PartModule
from anyformer.specs.field_types import Natural
from anyformer.specs.part import Part, Site


class PrefixTokens(
    Part, sees="itself", called=("class token", "CLS token", "distillation token", "registers (position=False)")
):
    """`count` learned tokens before the input. Registers have no position [Darcet et al. 2024]."""

    count: Natural = 1
    position: bool = True  # whether learned positions have a row for each of these tokens


class PrefixTokensModule(PartModule, of=PrefixTokens):
    def __init__(self, part: PrefixTokens, site: Site) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, part.count, site.width))
