"""A token table with a second, unused one in its checkpoints."""

from __future__ import annotations

import torch
from torch import nn

from anyformer.parts.embedding.text import Tokens, TokensModule
from anyformer.specs.part import Site


class SpareTableTokens(Tokens, sees="itself"):
    """Token vectors whose checkpoints contain a second table that nothing reads (`shared` of an untied BART)."""

    def build(self, site: Site) -> nn.Module:
        return SpareTableTokensModule(self, self.width or site.width)


class SpareTableTokensModule(TokensModule):
    def __init__(self, part: Tokens, width: int) -> None:
        super().__init__(part, width)
        self.spare = nn.Parameter(torch.empty(part.vocab_size, width), requires_grad=False)
