"""A masked-language-model head that scores only the tokens with a label (ModernBERT's `sparse_prediction`)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anyformer.kernels.loss import IGNORED
from anyformer.parts.head.base import NamedTensors
from anyformer.parts.head.language import LMHead, LMHeadModule
from anyformer.parts.head.losses import Loss, check_labels, class_loss
from anyformer.runtime.context import Context


class SparseHead(LMHead, sees="itself"):
    """Scores over the vocabulary. If labels are given, `logits` has one row per label that is not `ignored`."""

    shift: bool = False
    ignored: int = IGNORED

    def check(self) -> None:
        if self.shift or self.balance is not None:
            raise ValueError("SparseHead predicts masked tokens: it has no shift and no balance")


class SparseHeadModule(LMHeadModule, of=SparseHead):
    part: SparseHead

    def loss(self, x: Tensor, ctx: Context, labels: Tensor, smoothing: float = 0.0) -> Loss:
        return super().loss(x, ctx, labels.masked_fill(labels == self.part.ignored, IGNORED), smoothing)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        if (labels := inputs.get("labels")) is None:
            return super().answer(x, ctx, inputs)
        check_labels("labels", labels, tuple(x.shape[:2]))
        return {"logits": self.scores(x[labels.to(x.device) != self.part.ignored])}

    def label_loss(self, logits: Tensor, labels: Tensor, ctx: Context) -> Loss:
        return class_loss(logits, labels[labels != self.part.ignored])
