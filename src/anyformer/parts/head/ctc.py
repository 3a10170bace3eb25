"""Connectionist temporal classification: text from frames without an alignment [Graves et al. 2006].

B batch, T frames.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels import ctc
from anyformer.kernels.capture import can_read_values
from anyformer.parts.head.base import Head, HeadModule, NamedTensors
from anyformer.parts.head.losses import Loss, check_labels
from anyformer.runtime.context import Context
from anyformer.specs.part import Site


class CTCHead(Head, called=("speech recognition",)):
    """Scores over the alphabet for each frame, trained on the sum over all alignments [Graves et al. 2006]."""

    inputs: ClassVar[tuple[str, ...]] = ("labels",)

    vocab_size: int
    blank: int = 0
    dropout: float = 0.0
    reduction: Literal["sum", "mean"] = "sum"
    zero_infinity: bool = False


class CTCModule(HeadModule, of=CTCHead):
    def __init__(self, part: CTCHead, site: Site) -> None:
        super().__init__()
        self.part = part
        self.out = nn.Linear(site.width, part.vocab_size)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        return {"logits": self.out(F.dropout(x, self.part.dropout) if self.training and self.part.dropout else x)}

    def label_loss(self, logits: Tensor, labels: Tensor, ctx: Context) -> Loss:
        each, lengths = self.row_losses(logits, labels, ctx)
        if self.part.reduction == "sum":
            return Loss(each.sum(), 1.0)
        return Loss((each / lengths.clamp(min=1)).sum(), len(each))

    def row_losses(self, logits: Tensor, labels: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return the negative log-likelihood of each row of labels, (B,), and the rows' lengths."""
        check_labels("labels", labels, (logits.shape[0], labels.shape[-1] if labels.dim() == 2 else 1))
        if can_read_values() and labels.numel() and int(labels.max()) >= self.part.vocab_size:
            raise ValueError(f"labels: {int(labels.max())} is outside the alphabet of {self.part.vocab_size}")
        B, T = logits.shape[:2]
        frames = torch.full((B,), T, device=logits.device) if ctx.tokens is None else ctx.tokens.sum(-1)
        kept = (labels >= 0) & (labels != self.part.blank)  # labels are padded with -100 or the blank
        log_probs, lengths = logits.log_softmax(-1, dtype=torch.float32), kept.sum(-1)
        if ctc.fits(log_probs, labels):
            each = ctc.ctc_losses(log_probs, labels, kept, frames, self.part.blank)
            return each.masked_fill(each.isinf(), 0.0) if self.part.zero_infinity else each, lengths
        each = F.ctc_loss(
            log_probs.transpose(0, 1),
            labels.masked_select(kept),
            frames,
            lengths,
            blank=self.part.blank,
            reduction="none",
            zero_infinity=self.part.zero_infinity,
        )
        return each, lengths
