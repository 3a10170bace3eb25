"""Learned tokens before the input: class tokens, distillation tokens, registers."""

from __future__ import annotations

import torch
from torch import nn

from anyformer.specs.checks import at_least
from anyformer.specs.part import Part, Site


class PrefixTokens(
    Part, sees="itself", called=("class token", "CLS token", "distillation token", "registers (position=False)")
):
    """`count` learned tokens before the input. Registers have no position [Darcet et al. 2024]."""

    count: int = 1
    position: bool = True  # whether learned positions have a row for each of these tokens

    def check(self) -> None:
        at_least(self, 0, "count")

    def build(self, site: Site) -> nn.Module:
        return PrefixTokensModule(self, site.width)


class PrefixTokensModule(nn.Module):
    def __init__(self, part: PrefixTokens, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, part.count, width))
