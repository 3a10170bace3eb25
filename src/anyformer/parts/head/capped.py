"""A language-model head whose scores are bounded (Gemma 2).

D width, V vocabulary, C tokens per chunk.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from anyformer.kernels.loss import IGNORED, even_rows, rows_of_chunk
from anyformer.parts.head.language import LMHead, LMHeadModule
from anyformer.parts.head.losses import class_loss
from anyformer.specs.field_types import Positive


class CappedHead(LMHead, sees="itself", called=("final logit softcapping",)):
    """Scores over the vocabulary, bounded: bound * tanh(scores / bound) [Gemma 2, 2024]."""

    bound: Positive = 30.0

    def check(self) -> None:
        if self.unused_bias:
            raise ValueError("CappedHead has no unused_bias")


class CappedHeadModule(LMHeadModule, of=CappedHead):
    part: CappedHead

    def logits(self, x: Tensor) -> Tensor:
        return self.change_scores(self.out(x))

    def change_scores(self, scores: Tensor) -> Tensor:
        return torch.tanh(scores / self.part.bound) * self.part.bound

    def cross_entropy(self, x: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """The scores of a chunk are computed again in the backward pass, so that only one chunk is in memory."""
        x, labels = x.reshape(-1, x.shape[-1]), labels.reshape(-1)
        rows = even_rows(len(x), rows_of_chunk(x.device.type, self.part.vocab_size))

        def loss(x: Tensor, labels: Tensor) -> Tensor:  # (C, D), (C,)
            if not smoothing:
                return class_loss(self.logits(x), labels).sum
            scores = self.logits(x).float()
            return F.cross_entropy(scores, labels, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum")

        if len(x) <= rows:
            return loss(x, labels)
        parts: list[Any] = [
            checkpoint(loss, *chunk, use_reentrant=False) for chunk in zip(x.split(rows), labels.split(rows))
        ]
        return torch.stack(parts).sum()
