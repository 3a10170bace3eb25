"""Text embeddings that find padding by its token id, or set its vectors to zero.

B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from anyformer.parts.embedding.text import TextEmbedding, TextEmbeddingModule
from anyformer.runtime.context import Context, zero_padding
from anyformer.runtime.inputs import Kind
from anyformer.runtime.state import State


class HiddenTokenText(TextEmbedding, sees="itself"):
    """A text embedding that hides one token id if there is no attention_mask (the decoder of FSMT)."""

    hidden_token: int | None = None


class HiddenTokenModule(TextEmbeddingModule, of=HiddenTokenText):
    part: HiddenTokenText

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        ids, hidden = inputs.get("input_ids"), self.part.hidden_token
        static = state is not None and state.capacity is not None
        if ids is not None and hidden is not None and inputs.get("attention_mask") is None and not static:
            inputs = {**inputs, "attention_mask": ids != hidden}
        return super().forward(inputs, state)


class ZeroedPaddingText(TextEmbedding, sees="itself"):
    """A text embedding that sets the vectors of padding to zero (DeBERTa)."""


class ZeroedPaddingTextModule(TextEmbeddingModule, of=ZeroedPaddingText):
    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        x, ctx = super().forward(inputs, state)
        return zero_padding(x, ctx), ctx


class XLMText(HiddenTokenText, ZeroedPaddingText, sees="itself"):
    """A text embedding that hides one token id if there is no attention_mask, and sets the vectors of padding to zero
    (XLM). `langs` is accepted and ignored, as published; LanguageText adds a vector for it."""

    inputs: ClassVar[tuple[str, ...]] = (*TextEmbedding.inputs, "langs")
    input_kinds: ClassVar[Mapping[str, Kind]] = {"langs": "integers"}
    token_labels: ClassVar[tuple[str, ...]] = (*TextEmbedding.token_labels, "langs")


class XLMTextModule(HiddenTokenModule, ZeroedPaddingTextModule, of=XLMText):
    pass
