"""Next-token prediction [Radford et al. 2018]: predict each token from the tokens before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyformer.inputs.long import LongText
from anyformer.kernels.loss import IGNORED
from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record, pad_rows, pad_texts
from anyformer.objectives.examples import append_end
from anyformer.objectives.heads import language_head
from anyformer.objectives.objective import LOSS_METRICS, Baseline, HeadInputs, Objective
from anyformer.runtime.visibility import begins


class NextToken(Objective, called=("CLM", "causal language modelling", "next-token prediction", "language modelling")):
    """Texts end with the tokenizer's end token and are packed into full rows. With `apart`, documents in the same row
    do not see each other, and their first tokens are not predicted; without it, a row is one text (GPT-2)."""

    command: ClassVar[str] = "generate RUN PROMPT"
    loss_metrics: ClassVar[tuple[str, ...]] = LOSS_METRICS
    baseline: ClassVar[Baseline] = "tokens"
    packs: ClassVar[bool] = True

    apart: bool = True

    def ids(self, text: str | LongText, tokenizer: Any) -> Iterator[list[int]]:
        return append_end(tokenizer.pieces(text), tokenizer)

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        batch = pad_texts(records, pad)
        if self.apart and "document_ids" in records[0]:
            batch["document_ids"] = pad_rows([record["document_ids"] for record in records], 0)
        return batch

    def module(self, model: TransformerModule) -> nn.Module:
        if not language_head(model).part.shift:
            raise ValueError("NextToken needs a model that reads from left to right; this one has head.shift=False")
        if not model.spec.writes:  # a published BERT may have this head and still be bidirectional
            model.spec.check_writing("embedding", "encoder")
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": num_following(batch)}

    def judge(self, model: TransformerModule, batch: Batch, states: HeadInputs) -> dict[str, Tensor]:
        return {"loss": language_head(model).loss(states.x, states.ctx, next_tokens(batch)).sum}


def next_tokens(batch: Batch) -> Tensor:
    """Return labels (B, T): the tokens, not shifted yet, and IGNORED for padding."""
    ids = batch["input_ids"]
    return ids.masked_fill(batch["attention_mask"] == 0, IGNORED) if "attention_mask" in batch else ids


def num_following(batch: Batch) -> float:
    """Return the number of tokens that follow another token of their document."""
    follows = torch.ones_like(batch["input_ids"][:, 1:], dtype=torch.bool)
    if "attention_mask" in batch:
        follows &= batch["attention_mask"][:, 1:].bool()
    if "document_ids" in batch:
        follows &= ~begins(batch["document_ids"])[:, 1:]
    return float(follows.sum())
