"""Token classification."""

from __future__ import annotations

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.loss import IGNORED
from anyformer.parts.head.base import Head, HeadModule, NamedTensors
from anyformer.parts.head.losses import Loss, check_labels, class_loss
from anyformer.runtime.context import Context
from anyformer.specs.part import Site


class TagHead(
    Head, called=("token classification", "NER", "named entity recognition", "part-of-speech tagging", "POS tagging")
):
    """Scores of `num_labels` labels for each token."""

    inputs: ClassVar[tuple[str, ...]] = ("labels",)
    remembers: ClassVar[bool] = False

    num_labels: int
    dropout: float = 0.0
    counts_pads: bool = True  # labels of padding count unless they are -100; False: they are ignored (XLM-R XL)
    bias: bool = True


class TagModule(HeadModule, of=TagHead):
    def __init__(self, part: TagHead, site: Site) -> None:
        super().__init__()
        self.dropout, self.counts_pads = part.dropout, part.counts_pads
        self.out = nn.Linear(site.width, part.num_labels, bias=part.bias)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        return {"logits": self.out(F.dropout(x, self.dropout) if self.training and self.dropout else x)}

    def label_loss(self, logits: Tensor, labels: Tensor, ctx: Context) -> Loss:
        if not self.counts_pads and ctx.tokens is not None:
            check_labels("labels", labels, tuple(logits.shape[:2]))
            labels = labels.masked_fill(~ctx.tokens.to(labels.device), IGNORED)
        return class_loss(logits, labels)
