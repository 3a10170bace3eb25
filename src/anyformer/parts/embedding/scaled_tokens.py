"""Token vectors that are scaled by the square root of their width (Gemma)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anyformer.parts.computed import Computed
from anyformer.parts.embedding.text import Tokens, TokensModule
from anyformer.specs.part import Site


class ScaledTokens(Tokens, sees="itself"):
    """One learned vector per token, times the square root of its width. As published, the factor is rounded to the
    dtype of the weights [Gemma, 2024]."""

    def check(self) -> None:
        super().check()
        if self.scale is not None:
            raise ValueError("ScaledTokens.scale is always the square root of the width; use Tokens to set it")

    def build(self, site: Site) -> nn.Module:
        return ScaledTokensModule(self, self.width or site.width)


class ScaledTokensModule(TokensModule):
    def __init__(self, part: ScaledTokens, width: int) -> None:
        super().__init__(part, width)
        self.factor = Computed(lambda: torch.tensor([width**0.5]))

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * self.factor().to(self.weight.dtype)
