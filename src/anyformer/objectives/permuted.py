"""Permuted tokens [Yang et al. 2019]: a text is written in an order drawn by chance, and each token is predicted from
those before it in that order, on whichever side of it they stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.inputs.long import LongText
from anyformer.kernels.loss import IGNORED
from anyformer.models.base import TransformerModule
from anyformer.objectives.examples import array
from anyformer.objectives.objective import Batch, HeadInputs, Record, language_head, pad_rows, pad_texts
from anyformer.objectives.vocabulary_info import VocabularyObjective, is_one_of
from anyformer.specs.checks import at_least

ROUND = 16  # so many tokens more are asked for at once, so that a compiled step sees few sizes


class Permuted(VocabularyObjective, called=("PLM", "permutation language modelling")):
    """About `rate` of the tokens are asked for, in spans of 1 to `longest`, each somewhere in a stretch that is 1 /
    `rate` times as long. The rest are read first and see nothing of these, which are then read in an order drawn anew
    each time. Texts are packed into rows."""

    rate: float = 1 / 6
    longest: int = 5

    def check(self) -> None:
        at_least(self, 1, "longest")
        if not 0 < self.rate < 1:
            raise ValueError(f"Permuted.rate is {self.rate}; it must be between 0 and 1")

    @property
    def packs(self) -> bool:
        return True

    def ids(self, text: str | LongText, tokenizer: Any) -> Iterator[list[int]]:
        return tokenizer.pieces(text)

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        ids = record["input_ids"]
        places = self.choose(ids, random)
        order = np.full(len(ids), -1, np.int32)  # before all that are asked for
        order[places] = random.permutation(len(places))
        return {**record, "order": order, "places": places, "labels": array(ids[places])}

    def choose(self, ids: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """(M,) places, in order; special tokens are never asked for."""
        chosen, begin, texts = np.zeros(len(ids), bool), 0, ~is_one_of(ids, self.words.apart)
        while begin < len(ids):
            span = int(random.integers(1, self.longest + 1))
            stretch = max(int(span / self.rate), span)
            start = begin + int(random.integers(stretch - span + 1))
            chosen[start : start + span] = True
            begin += stretch
        places = np.flatnonzero(chosen & texts)
        return places if len(places) else random.permutation(np.flatnonzero(texts))[:1]

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        batch = pad_texts(records, pad)
        if "document_ids" in records[0]:
            batch["document_ids"] = pad_rows([record["document_ids"] for record in records], 0)
        most = max(len(record["places"]) for record in records)
        P, T = -(-most // ROUND) * ROUND or ROUND, batch["input_ids"].shape[1]
        labels = torch.full((len(records), P), IGNORED)
        asked = torch.zeros(len(records), P, T, dtype=torch.bool)
        for i, record in enumerate(records):
            count = len(record["places"])
            labels[i, :count] = torch.from_numpy(record["labels"].astype(np.int64))
            asked[i, torch.arange(count), torch.from_numpy(record["places"].astype(np.int64))] = True
        hidden = permutation_mask(pad_rows([record["order"] for record in records], -1))
        return {**batch, "perm_mask": hidden, "target_mapping": asked, "labels": labels}

    def module(self, model: TransformerModule) -> nn.Module:
        if language_head(model).part.shift or "target_mapping" not in model.inputs:
            raise ValueError(
                "permuted tokens need a model that takes target_mapping (OrderedText, TwoStreams); this one does not"
            )
        return model

    def judge(self, model: TransformerModule, batch: Batch, states: HeadInputs) -> dict[str, Tensor]:
        return {"loss": language_head(model).loss(states.x, states.ctx, batch["labels"]).sum}


def permutation_mask(order: Tensor) -> Tensor:
    """(B, T) when each token is read, -1 for those that all see -> (B, T, T) True where a token does not see another:
    one that is asked for no earlier than itself. That is also itself, for the stream that asks."""
    return (order[:, None] >= 0) & (order[:, :, None] <= order[:, None])
