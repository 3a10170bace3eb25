"""Pretraining heads of BERT and ALBERT: masked tokens, and the relation of two sentences.

B batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from anyformer.parts.head.base import Head, HeadModule, NamedTensors
from anyformer.parts.head.classify import ClassifyModule
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.losses import Loss, class_loss
from anyformer.parts.head.pool import Pool
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import Kind
from anyformer.runtime.taps import TapNames
from anyformer.specs.part import Site


class NextSentenceHead(Head):
    """Whether sentence B follows sentence A: two scores from the pooled vector (BERT)."""

    inputs: ClassVar[tuple[str, ...]] = ("labels",)

    pool: Pool

    def build(self, site: Site) -> nn.Module:
        return ClassifyModule(self.pool, 2, True, "single_label_classification", site)


class PretrainingHead(Head):
    """BERT's two objectives at once: masked tokens and next sentence."""

    inputs: ClassVar[tuple[str, ...]] = ("labels", "next_sentence_label")
    input_kinds: ClassVar[Mapping[str, Kind]] = {"next_sentence_label": "labels"}
    output: ClassVar[str] = "seq_relationship_logits"

    lm: LMHead
    pool: Pool
    tokens_alone: bool = False  # without pair labels, return the token loss (BigBird); False: return no loss


class SentenceOrderHead(PretrainingHead, called=("SOP", "sentence order prediction")):
    """Masked tokens, and which of two segments of a text comes first [Lan et al. 2020]."""

    inputs: ClassVar[tuple[str, ...]] = ("labels", "sentence_order_label")
    input_kinds: ClassVar[Mapping[str, Kind]] = {"sentence_order_label": "labels"}
    output: ClassVar[str] = "sop_logits"


class PretrainingModule(HeadModule, of=PretrainingHead):
    tapped: ClassVar[TapNames] = {"lm": None}

    lm: Any

    def __init__(self, part: PretrainingHead, site: Site) -> None:
        super().__init__()
        self.address = site.address
        self.pair_label, self.pair_output, self.tokens_alone = part.inputs[1], part.output, part.tokens_alone
        self.lm = part.lm.build(site.child("lm"))
        self.pool = part.pool.build(site.child("pool"))
        self.out = nn.Linear(site.width, 2)

    def relation_scores(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        """(B, 2)"""
        return self.out(self.pool(x, ctx, inputs))

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        logits = ctx.tap(self.address, "lm", self.lm.scores(x))
        return {"prediction_logits": logits, self.pair_output: self.relation_scores(x, ctx, inputs)}

    def judge(self, outputs: NamedTensors, ctx: Context, inputs: dict[str, Any]) -> dict[str, Loss]:
        labels, related = inputs.get("labels"), inputs.get(self.pair_label)
        if labels is None or (related is None and not self.tokens_alone):
            return {}
        terms = {"masked": class_loss(outputs["prediction_logits"], labels)}
        if related is not None:
            terms["next"] = class_loss(outputs[self.pair_output], related, self.pair_label)
        return terms
