"""A language-model head and a score per text (GPT's fine-tuning with an auxiliary loss).

B batch, C choices, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.base import PartModule
from anyformer.parts.head.base import Head, HeadModule, NamedTensors, Outputs
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.losses import Loss, class_loss
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import Kind
from anyformer.runtime.taps import TapNames
from anyformer.specs.field_types import Chance, Count
from anyformer.specs.part import Part, Site


class Summary(Part):
    """One vector per text. `take` is "index" (the vector at a given index, or the last one without an index), or the
    "last", "first" or "mean" vector along the second dimension."""

    take: Literal["index", "last", "first", "mean"] = "index"
    width: Count | None = None  # output width of a projection; None: no projection
    activation: Activation = "identity"
    first_dropout: Chance = 0.0
    last_dropout: Chance = 0.0


class SummaryModule(PartModule, of=Summary):
    def __init__(self, part: Summary, site: Site) -> None:
        super().__init__()
        self.part = part
        self.dense = nn.Linear(site.width, part.width) if part.width else None

    def forward(self, x: Tensor, indices: Tensor | None, is_token: Tensor | None) -> Tensor:
        """Return one vector (..., width) per text of x (..., T, D). `indices` (...) are for take="index"."""
        part = self.part
        if part.take == "index" and indices is not None:
            x = x.gather(-2, indices[..., None, None].expand(*indices.shape, 1, x.shape[-1])).squeeze(-2)
        elif part.take == "index":
            x = x[..., -1, :]
        elif part.take == "first" and is_token is not None and x.dim() == 3:  # not index 0 if padding is on the left
            x = x.gather(1, is_token.int().argmax(-1)[:, None, None].expand(-1, 1, x.shape[-1])).squeeze(1)
        else:
            x = x.mean(1) if part.take == "mean" else x[:, -1 if part.take == "last" else 0]
        if self.training and part.first_dropout:
            x = F.dropout(x, part.first_dropout)
        x = ACTIVATIONS[part.activation](x if self.dense is None else self.dense(x))
        return F.dropout(x, part.last_dropout) if self.training and part.last_dropout else x


class DoubleHead(Head):
    """Scores over the vocabulary and one score per text, with one loss each [Radford et al. 2018]. Texts may be
    (B, C, T); choices are then processed separately. `mc_token_ids` is the index of the token that scores each text."""

    inputs: ClassVar[tuple[str, ...]] = ("mc_token_ids", "labels", "mc_labels")
    input_kinds: ClassVar[Mapping[str, Kind]] = {"mc_token_ids": "integers", "mc_labels": "labels"}

    lm: LMHead
    summary: Summary


class DoubleHeadModule(HeadModule, of=DoubleHead):
    tapped: ClassVar[TapNames] = {"lm": None, "text": "hidden_states"}

    lm: Any

    def __init__(self, part: DoubleHead, site: Site) -> None:
        super().__init__()
        self.lm = part.lm.build(site.child("lm"))
        self.summary, self.address = part.summary.build(site.child("summary")), site.address

    def arrange(self, inputs: dict[str, Any]) -> dict[str, Any]:
        ids = inputs.get("input_ids")
        if ids is None or ids.dim() != 3:
            return inputs
        flat = {k: v.flatten(0, 1) for k, v in inputs.items() if isinstance(v, Tensor) and v.dim() == 3}
        return {**inputs, **flat, "choices": ids.shape[:2]}

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        choices = inputs.get("choices")  # (B, C)
        logits = ctx.tap(self.address, "lm", self.lm.scores(x))
        if choices is not None:
            x, logits = x.unflatten(0, choices), logits.unflatten(0, choices)
        x = ctx.tap(self.address, "text", x)  # (B, C, T, D), as published
        scores = self.summary(x, inputs.get("mc_token_ids"), ctx.tokens)
        return {"logits": logits, "mc_logits": scores.squeeze(-1) if scores.shape[-1] == 1 else scores}

    def judge(self, outputs: NamedTensors, ctx: Context, inputs: dict[str, Any]) -> dict[str, Loss]:
        logits, scores, terms = outputs["logits"], outputs["mc_logits"], {}
        if (labels := inputs.get("labels")) is not None:
            terms["loss"] = self.lm.label_loss(logits.flatten(0, -3), labels, ctx)  # one text per row
        if (answers := inputs.get("mc_labels")) is not None:
            terms["mc_loss"] = class_loss(scores.reshape(-1, scores.shape[-1]), answers.flatten(), "mc_labels")
        return terms

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Outputs:
        outputs = self.answer(x, ctx, inputs)
        return {**{name: term.mean for name, term in self.judge(outputs, ctx, inputs).items()}, **outputs}
