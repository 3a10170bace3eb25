"""Extractive question answering: the start and end of the answer in a text.

B batch, T tokens.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.head.base import Head, HeadModule, NamedTensors
from anyformer.parts.head.losses import Loss, class_loss
from anyformer.runtime.context import Context
from anyformer.specs.part import Site


class SpanHead(Head, called=("question answering", "extractive QA", "span prediction")):
    """Two scores per token: for the start and for the end of the answer."""

    inputs: ClassVar[tuple[str, ...]] = ("start_positions", "end_positions")
    remembers: ClassVar[bool] = False
    requires: ClassVar[tuple[str, ...]] = ("a row of tokens",)  # labels are token indices

    dropout: float = 0.0


class SpanModule(HeadModule, of=SpanHead):
    def __init__(self, part: SpanHead, site: Site) -> None:
        super().__init__()
        self.dropout = part.dropout
        self.out = nn.Linear(site.width, 2)

    def scores(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        """(B, T, 2)"""
        return self.out(F.dropout(x, self.dropout) if self.training and self.dropout else x)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        start, end = self.scores(x, ctx, inputs).unbind(-1)
        return {"start_logits": start.contiguous(), "end_logits": end.contiguous()}

    def judge(self, outputs: NamedTensors, ctx: Context, inputs: dict[str, Any]) -> dict[str, Loss]:
        names, terms = ("start", "end"), {}
        if any(inputs.get(f"{name}_positions") is None for name in names):
            return {}
        for name in names:
            scores, places = outputs[f"{name}_logits"], inputs[f"{name}_positions"]
            T = scores.shape[1]  # answers outside the text are ignored
            half, weight = class_loss(scores, places.clamp(0, T), f"{name}_positions", ignored=T)
            terms[name] = Loss(half / 2, weight)
        return terms
