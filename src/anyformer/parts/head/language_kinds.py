"""Language-model heads of single families: with a stored offset, or with their own vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from anyformer.parts.computed import ComputesTensors
from anyformer.parts.head.language import LMHead, LMHeadModule
from anyformer.specs.part import Site


class OffsetLMHead(LMHead, sees="itself"):
    """Scores over the vocabulary plus a stored, untrained offset (BART's final_logits_bias)."""


class OffsetLMHeadModule(LMHeadModule, ComputesTensors, of=OffsetLMHead):
    offset: Tensor

    def __init__(self, part: LMHead, site: Site) -> None:
        super().__init__(part, site)
        self.register_buffer("offset", torch.zeros(part.vocab_size))

    def computed_tensors(self) -> dict[str, Callable[[], Tensor]]:
        return {"offset": lambda: torch.zeros(self.part.vocab_size)}

    def logits(self, x: Tensor) -> Tensor:
        return super().logits(x).add_(self.offset)  # in place, because scores are large

    def score_bias(self) -> Tensor:
        bias = super().score_bias()
        return self.offset if bias is None else bias + self.offset


class OwnVocabularyHead(LMHead, sees="itself"):
    """Scores over a vocabulary that differs from the input's (ImageGPT, a MarianForCausalLM with two)."""

    own_vocabulary: ClassVar[bool] = True


class OwnVocabularyOffsetHead(OffsetLMHead, sees="itself"):
    """OffsetLMHead over a vocabulary that differs from the input's (an untied MarianMTModel with two)."""

    own_vocabulary: ClassVar[bool] = True
