"""Extractive question answering on a text that begins with the question (BigBird).

B batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.span import SpanHead, SpanModule
from anyformer.parts.norm import Norm
from anyformer.runtime.context import Context, leading_pads
from anyformer.runtime.inputs import Kind
from anyformer.runtime.visibility import first_of_document
from anyformer.specs.part import Site


class QuestionHead(SpanHead, sees="all"):
    """Start and end scores after one more feed-forward step. Question tokens get low scores. The question ends at
    the first `separator`, or after `question_lengths` tokens; without `token_type_ids`, the rest is segment 1."""

    inputs: ClassVar[tuple[str, ...]] = (*SpanHead.inputs, "question_lengths")
    input_kinds: ClassVar[Mapping[str, Kind]] = {"question_lengths": "integers"}
    requires: ClassVar[tuple[str, ...]] = ("token ids", "segments")

    separator: int | None
    feedforward: MLP
    norm: Norm

    def check(self) -> None:
        super().check()
        if self.feedforward.reshapes:
            raise ValueError("QuestionHead.feedforward.out: the output must have the model's width; do not set `out`")

    @property
    def causal_alternative(self) -> str:
        return repr(SpanHead(dropout=self.dropout))


class QuestionModule(SpanModule, of=QuestionHead):
    def __init__(self, part: QuestionHead, site: Site) -> None:
        super().__init__(part, site)
        self.separator = part.separator
        self.feedforward = part.feedforward.build(site.child("feedforward"))
        self.norm = part.norm.build(site.child("norm"))

    def arrange(self, inputs: dict[str, Any]) -> dict[str, Any]:
        question = self.question(inputs)
        if question is None:
            return inputs
        inputs = {**inputs, "question": question[0] & ~question[1]}  # the first token may be chosen: "no answer"
        if inputs.get("token_type_ids") is None:
            inputs["token_type_ids"] = (~question[0]).long()
        return inputs

    def question(self, inputs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
        """Return two masks (B, T): the question (including the first token), and the first token of each text."""
        ids, lengths, mask = (inputs.get(name) for name in ("input_ids", "question_lengths", "attention_mask"))
        text = inputs.get("inputs_embeds") if ids is None else ids
        if text is None or text.dim() < 2 or (ids is None and lengths is None):
            return None
        index, documents = torch.arange(text.shape[1], device=text.device), inputs.get("document_ids")
        start = index.new_zeros(text.shape[0], 1) if mask is None else leading_pads(mask)
        if documents is not None:
            start = first_of_document(documents)
        if lengths is not None:
            if documents is not None:
                raise ValueError("question_lengths cannot be used with document_ids: they are one length per row")
            return index - start < lengths.view(-1, 1), index == start
        if self.separator is None or ids is None:
            raise ValueError("give question_lengths: QuestionHead.separator is not set")
        ends: Tensor = ids == self.separator
        before = ends.cumsum(-1) - ends.long()  # separators before each token; `rest`: from it to the document's end
        rest = ends.sum(-1, keepdim=True) - before
        if documents is not None:
            before = before - before.gather(1, start)
            last = index[-1] - first_of_document(documents.flip(-1)).flip(-1)
            rest = rest - (rest - ends.long()).gather(1, last)
        return ((before == 0) & (rest > 0)) | (index == start), index == start

    def scores(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        drop = self.dropout if self.training else 0.0
        inner = self.feedforward(F.dropout(x, drop) if drop else x, ctx)
        scores = self.out(self.norm((F.dropout(inner, drop) if drop else inner) + x))
        if inputs.get("question") is None:
            return scores
        low = min(1e6, torch.finfo(scores.dtype).max / 2)
        return scores - low * inputs["question"][..., None].to(scores.dtype)
