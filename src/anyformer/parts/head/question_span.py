"""Answers in a text that begins with its question (BigBird's head for long texts).

B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.span import SpanHead, SpanModule
from anyformer.parts.norm import Norm
from anyformer.runtime.context import Context, leading_pads
from anyformer.runtime.inputs import Kind
from anyformer.runtime.mask import first_of_document
from anyformer.specs.part import Site


class QuestionHead(SpanHead, sees="all"):
    """One more feed-forward step before the scores, and no answer inside the question, which goes up to the first
    `separator` (or is `question_lengths` long). Where no segments are given, what follows it is the second."""

    inputs: ClassVar[tuple[str, ...]] = (*SpanHead.inputs, "question_lengths")
    input_kinds: ClassVar[Mapping[str, Kind]] = {"question_lengths": "integers"}
    requires: ClassVar[tuple[str, ...]] = ("token ids", "segments")

    separator: int | None
    feedforward: MLP
    norm: Norm

    def check(self) -> None:
        super().check()
        if self.feedforward.reshapes:
            raise ValueError("QuestionHead.feedforward.out: what is scored is as wide as the stream; leave it out")

    @property
    def causal_alternative(self) -> str:
        return repr(SpanHead(dropout=self.dropout))

    def build(self, site: Site) -> nn.Module:
        return QuestionModule(self, site)


class QuestionModule(SpanModule):
    def __init__(self, part: QuestionHead, site: Site) -> None:
        super().__init__(site.width, part.dropout)
        self.separator = part.separator
        self.feedforward = part.feedforward.build(site.child("feedforward"))
        self.norm = part.norm.build(site.child("norm"))

    def arrange(self, inputs: dict[str, Any]) -> dict[str, Any]:
        question = self.question(inputs)
        if question is None:
            return inputs
        inputs = {**inputs, "question": question[0] & ~question[1]}  # the first token may be the answer: there is none
        if inputs.get("token_type_ids") is None:
            inputs["token_type_ids"] = (~question[0]).long()
        return inputs

    def question(self, inputs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
        """(B, T) the tokens of the question, and the first of each text, which is always one of them."""
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
                raise ValueError("question_lengths are of one text a row: packed documents cannot have them")
            return index - start < lengths.view(-1, 1), index == start
        if self.separator is None or ids is None:
            raise ValueError("give question_lengths: the description names no separator that ends a question")
        ends: Tensor = ids == self.separator
        before = ends.cumsum(-1) - ends.long()  # separators before each token, then those behind, in its document
        behind = ends.sum(-1, keepdim=True) - before
        if documents is not None:
            before = before - before.gather(1, start)
            last = index[-1] - first_of_document(documents.flip(-1)).flip(-1)
            behind = behind - (behind - ends.long()).gather(1, last)
        return ((before == 0) & (behind > 0)) | (index == start), index == start

    def scores(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        drop = self.dropout if self.training else 0.0
        inner = self.feedforward(F.dropout(x, drop) if drop else x, ctx)
        scores = self.out(self.norm((F.dropout(inner, drop) if drop else inner) + x))
        if inputs.get("question") is None:
            return scores
        low = min(1e6, torch.finfo(scores.dtype).max / 2)
        return scores - low * inputs["question"][..., None].to(scores.dtype)
