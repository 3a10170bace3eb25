"""Permutation language modelling [Yang et al. 2019]: predict the tokens of a text in a random order, each from the
tokens before it in that order, which may be on both sides of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.inputs.long import LongText
from anyformer.kernels.loss import IGNORED
from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record, pad_rows, pad_texts
from anyformer.objectives.examples import array
from anyformer.objectives.heads import language_head
from anyformer.objectives.objective import PERPLEXITY, HeadInputs
from anyformer.objectives.vocabulary_info import VocabularyObjective, is_one_of
from anyformer.specs.field_types import Count, ProperFraction

ROUND = 16  # the number of predicted tokens is rounded up to a multiple, so that a compiled step sees few sizes


class Permuted(VocabularyObjective, called=("PLM", "permutation language modelling")):
    """About `rate` of the tokens are predicted, in spans of 1 to `longest` tokens. A text is cut into stretches,
    each 1 / `rate` times as long as its span; the span is at a random place in it. The other tokens come first in the
    order and do not see the predicted tokens, whose order is random. Texts are packed into rows."""

    loss_metrics: ClassVar[tuple[str, ...]] = PERPLEXITY
    packs: ClassVar[bool] = True

    rate: ProperFraction = 1 / 6
    longest: Count = 5

    def ids(self, text: str | LongText, tokenizer: Any) -> Iterator[list[int]]:
        return tokenizer.pieces(text)

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        ids = record["input_ids"]
        chosen_indices = self.choose(ids, random)
        order = np.full(len(ids), -1, np.int32)  # before all predicted tokens
        order[chosen_indices] = random.permutation(len(chosen_indices))
        return {**record, "order": order, "places": chosen_indices, "labels": array(ids[chosen_indices])}

    def choose(self, ids: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Return the sorted indices (M,) of the tokens to predict; special tokens are never chosen."""
        chosen, begin, is_text = np.zeros(len(ids), bool), 0, ~is_one_of(ids, self.words.apart)
        while begin < len(ids):
            span = int(random.integers(1, self.longest + 1))
            stretch = max(int(span / self.rate), span)
            start = begin + int(random.integers(stretch - span + 1))
            chosen[start : start + span] = True
            begin += stretch
        chosen_indices = np.flatnonzero(chosen & is_text)
        return chosen_indices if len(chosen_indices) else random.permutation(np.flatnonzero(is_text))[:1]

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        batch = pad_texts(records, pad)
        if "document_ids" in records[0]:
            batch["document_ids"] = pad_rows([record["document_ids"] for record in records], 0)
        most = max(len(record["places"]) for record in records)
        P, T = -(-most // ROUND) * ROUND or ROUND, batch["input_ids"].shape[1]
        labels = torch.full((len(records), P), IGNORED)
        mapping = torch.zeros(len(records), P, T, dtype=torch.bool)
        for i, record in enumerate(records):
            count = len(record["places"])
            labels[i, :count] = torch.from_numpy(record["labels"].astype(np.int64))
            mapping[i, torch.arange(count), torch.from_numpy(record["places"].astype(np.int64))] = True
        hidden = permutation_mask(pad_rows([record["order"] for record in records], -1))
        return {**batch, "perm_mask": hidden, "target_mapping": mapping, "labels": labels}

    def module(self, model: TransformerModule) -> nn.Module:
        if language_head(model).part.shift or "target_mapping" not in model.inputs:
            raise ValueError("permuted tokens need a model that takes target_mapping (OrderedText, TwoStreams)")
        return model

    def judge(self, model: TransformerModule, batch: Batch, states: HeadInputs) -> dict[str, Tensor]:
        return {"loss": language_head(model).loss(states.x, states.ctx, batch["labels"]).sum}


def permutation_mask(order: Tensor) -> Tensor:
    """(B, T) order of prediction, -1 for tokens that are visible to all -> (B, T, T) True if token i does not see token
    j: j is predicted at the same time as i or later. So a predicted token does not see itself in the query stream."""
    return (order[:, None] >= 0) & (order[:, :, None] <= order[:, None])
