"""Heads of causal and masked language models.

D width.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.loss import IGNORED, linear_cross_entropy
from anyformer.parts.feedforward.balance import Balance
from anyformer.parts.fused_linear import effective_weight
from anyformer.parts.head.base import Head, HeadModule, NamedTensors, Transform
from anyformer.parts.head.losses import Loss, check_labels, class_loss
from anyformer.parts.unused import mark_unused
from anyformer.runtime.context import Context
from anyformer.runtime.visibility import begins
from anyformer.specs.part import Sees, Site, farthest


class LMHead(Head, sees="itself", called=("language model head", "unembedding")):
    """Scores over the vocabulary."""

    inputs: ClassVar[tuple[str, ...]] = ("labels", "logits_to_keep")
    own_vocabulary: ClassVar[bool] = False  # may differ from the input's vocabulary

    vocab_size: int
    bias: bool = False
    shift: bool = True  # token t predicts label t + 1; False: token t predicts label t
    transform: Transform | None = None
    scale: float | None = None  # factor of the hidden states before the scores (tied T5: 1 / sqrt(D))
    balance: Balance | None = None  # load-balancing losses of experts; added if output_router_logits is given
    unused_bias: bool = False  # checkpoints contain a second, unused bias (an untied BERT)

    def reaches(self) -> Sees | None:
        return farthest("itself", self.transform)

    @classmethod
    def upgrade(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Earlier versions had fields for the kinds in language_kinds.py."""
        kind = "OwnVocabulary" * data.pop("foreign", False) + "Offset" * data.pop("offset", False)
        names = {"OwnVocabulary": "OwnVocabularyHead", "Offset": "OffsetLMHead", "": "LMHead"}
        return {**data, "kind": names.get(kind, "OwnVocabularyOffsetHead")} if kind else data


class LMHeadModule(HeadModule, of=LMHead):
    def __init__(self, part: LMHead, site: Site) -> None:
        super().__init__()
        self.part = part
        self.transform = part.transform.build(site.child("transform")) if part.transform else None
        width = (part.transform.width if part.transform else None) or site.width
        self.out: Any = self.output(width)
        if part.unused_bias:
            self.idle = mark_unused(nn.ParameterDict({"bias": torch.zeros(part.vocab_size)}))

    def output(self, width: int) -> nn.Module:
        """Build the layer from vectors of this width to scores."""
        return nn.Linear(width, self.part.vocab_size, bias=self.part.bias)

    def scores(self, x: Tensor) -> Tensor:
        if self.transform is not None:
            x = self.transform(x)
        return self.logits(x if self.part.scale is None else x * self.part.scale)

    def logits(self, x: Tensor) -> Tensor:
        return self.out(x)

    def change_scores(self, scores: Tensor) -> Tensor:
        """The change of each score after the output layer, if `logits` makes one."""
        return scores

    def loss(self, x: Tensor, ctx: Context, labels: Tensor, smoothing: float = 0.0) -> Loss:
        """Return the training loss over labels that are not -100, without all scores in memory. The balance loss of
        experts is a mean over the tokens of this pass; it is weighted by the number of labels."""
        if self.part.shift:
            labels = next_labels(labels, ctx)
        is_target = labels != IGNORED
        number = is_target.sum()
        balance: Tensor | float = 0.0
        if self.part.balance is not None and self.training and (terms := self.part.balance.terms(ctx)):
            balance = self.part.balance.total(terms) * number
        if x.is_cpu and not torch.compiler.is_compiling():  # a data-dependent size would make other devices wait
            x, labels = x[is_target], labels[is_target]
        if self.transform is not None:
            x = self.transform(x)
        if self.part.scale is not None:
            x = x * self.part.scale
        return Loss(self.cross_entropy(x, labels, smoothing) + balance, number)

    def cross_entropy(self, x: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """Return the summed cross-entropy of vectors (..., D) over labels (...) that are not -100."""
        return linear_cross_entropy(x, effective_weight(self.out), labels, self.score_bias(), smoothing=smoothing)

    def score_bias(self) -> Tensor | None:
        """Return what is added to the scores (V,), or None."""
        return self.out.bias

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        keep = inputs.get("logits_to_keep")
        if keep is not None and not (isinstance(keep, int) and keep == 0):
            x = x[:, -keep:] if isinstance(keep, int) else x[:, keep]
        logits = self.scores(x)
        if self.part.balance is None or not inputs.get("output_router_logits"):
            return {"logits": logits}
        terms = self.part.balance.terms(ctx)
        first = {name: terms.pop(name) for name in ("aux_loss",) if name in terms}
        return {**first, "logits": logits, **terms}  # as published

    def label_loss(self, logits: Tensor, labels: Tensor, ctx: Context) -> Loss:
        check_labels("labels", labels, tuple(logits.shape[:2]))
        return class_loss(logits, next_labels(labels, ctx) if self.part.shift else labels)

    def judge(self, outputs: NamedTensors, ctx: Context, inputs: dict[str, Any]) -> dict[str, Loss]:
        losses = super().judge(outputs, ctx, inputs)
        if losses and self.part.balance is not None and inputs.get("output_router_logits"):
            terms = {name: value for name, value in outputs.items() if name != "logits"}
            losses["balance"] = Loss(self.part.balance.total(terms), 1.0)
        return losses


class VocabularyOutput(Head):
    """Scores over the vocabulary, returned as `last_hidden_state` and without a loss (FSMTModel)."""

    own_vocabulary: ClassVar[bool] = False

    vocab_size: int

    def build(self, site: Site) -> nn.Module:
        return VocabularyOutputModule(LMHead(vocab_size=self.vocab_size), site)


class VocabularyOutputModule(LMHeadModule):
    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        return {"last_hidden_state": self.scores(x)}


def next_labels(labels: Tensor, ctx: Context) -> Tensor:
    """Shift labels by one to the left: each token's target is the next token of the same document."""
    shifted = F.pad(labels[:, 1:], (0, 1), value=-100)
    if ctx.documents is not None:
        shifted = shifted.masked_fill(F.pad(begins(ctx.documents)[:, 1:], (0, 1), value=True), -100)
    return shifted
