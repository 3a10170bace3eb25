"""BERT's pretraining [Devlin et al. 2019]: predict masked tokens, and whether one text follows another."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from torch import Tensor, nn

from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record, scalars
from anyformer.objectives.examples import array, text_of
from anyformer.objectives.heads import head_of
from anyformer.objectives.masked import Masked, masked_loss
from anyformer.objectives.objective import HeadInputs
from anyformer.objectives.vocabulary_info import VocabularyInfo
from anyformer.parts.head.losses import class_loss
from anyformer.parts.head.pretraining import PretrainingModule
from anyformer.specs.field_types import Range

FOLLOWS, RANDOM = 0, 1  # labels, as in published checkpoints


class MaskedAndNext(Masked, called=("NSP", "next sentence prediction")):
    """Predict masked tokens of "[CLS] A [SEP] B [SEP]", and whether B follows A (with probability `next_rate`) or is
    from another document. An example is a document with one sentence per line; a single line is split into sentences.

    Documents are split into runs of sentences of about `length` tokens; each time, a run is divided at another place.
    A fraction `short` of them is cut to a random length, so that the model also sees short inputs.
    """

    command: ClassVar[str] = "run next-sentence RUN TEXT PAIR"
    loss_metrics: ClassVar[tuple[str, ...]] = ()  # the loss has terms that are not per token
    partners: ClassVar[int] = 1
    packs: ClassVar[bool] = False

    length: Annotated[int, Range(at_least=3)] | None = 512
    short: float = 0.1
    next_rate: float = 0.5

    def check(self) -> None:
        super().check()
        if self.length is None or self.whole_words or self.copies:
            raise ValueError("MaskedAndNext needs a length, and takes neither copies nor whole_words")

    @property
    def room(self) -> int:
        assert self.length is not None
        return self.length - 3  # [CLS] and two [SEP]

    def needs(self, known: VocabularyInfo) -> None:
        super().needs(known)
        if known.separator is None or known.begin is None:
            raise ValueError("MaskedAndNext needs a tokenizer with a begin token and a separator")

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> list[Record]:
        text = text_of(example, "text")
        lines = [line for line in text.splitlines() if line.strip()]
        sentences = lines if len(lines) > 1 else [s for s in re.split(r"(?<=[.!?])\s+", text) if s.strip()]
        tokens = [ids for s in sentences if (ids := tokenizer.encode(s, add_special_tokens=False))]
        if not tokens:
            raise ValueError("the document has no tokens")
        document, runs, run = np.int64(zlib.crc32(text.encode())), [], []
        for i, ids in enumerate(tokens):
            run.append(ids)
            if sum(map(len, run)) >= self.room or i == len(tokens) - 1:
                ends = np.cumsum([len(ids) for ids in run])
                flat = array([token for ids in run for token in ids])
                runs.append({"input_ids": flat, "ends": ends, "document": np.asarray(document)})
                run = []
        return runs

    def size(self, record: Record) -> int:
        return min(super().size(record), self.length or 0)  # `vary` cuts off the rest

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        first, second, label = self.pair(record, partners[0], random)
        first, second = truncate_pair(first, second, self.room, random)
        known = self.words
        ids = np.concatenate([[known.begin], first, [known.separator], second, [known.separator]])
        segments = np.repeat([0, 1], [len(first) + 2, len(second) + 1])
        seen = super().vary({"input_ids": array(ids)}, random)
        return {**seen, "token_type_ids": array(segments), "next": np.asarray(label)}

    def pair(self, record: Record, other: Record, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
        """Return A, B and the label: two halves of a run, or its first half and about as many tokens of `other`."""
        target = self.room if random.random() >= self.short else int(random.integers(2, self.room + 1))
        ids, ends = record["input_ids"], record["ends"]
        ends = ends[: int(np.searchsorted(ends, target)) + 1]  # as few sentences as reach the target
        middle = int(ends[random.integers(len(ends) - 1)]) if len(ends) > 1 else int(ends[0])
        first, second = ids[:middle], ids[middle : ends[-1]]
        foreign = other["document"] != record["document"]
        if foreign and (len(ends) == 1 or random.random() >= self.next_rate):
            stops = other["ends"]
            start = int(random.integers(len(stops)))
            start = int(stops[start - 1]) if start else 0
            stop = min(int(np.searchsorted(stops, start + max(target - middle, 1))), len(stops) - 1)
            return first, other["input_ids"][start : stops[stop]], RANDOM
        if len(ends) == 1:  # one sentence and no other document: split it
            middle = max(len(first) // 2, 1)
            first, second = ids[:middle], ids[middle : ends[-1]]
        return first, second, FOLLOWS

    def collate(self, records: Any, pad: int) -> Batch:
        return {**super().collate(records, pad), "next": scalars(records, "next")}

    def module(self, model: TransformerModule) -> nn.Module:
        head_of(model, PretrainingModule, "next sentence")
        return super().module(model)

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"masked": super().weights(batch)["loss"], "next": float(len(batch["next"]))}

    def judge(self, model: TransformerModule, batch: Batch, states: HeadInputs) -> dict[str, Tensor]:
        related = head_of(model, PretrainingModule, "next sentence").relation_scores(
            states.x, states.ctx, states.inputs
        )
        return {"masked": masked_loss(model, batch, states), "next": class_loss(related, batch["next"]).sum}


def truncate_pair(
    first: np.ndarray, second: np.ndarray, room: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Cut both to `room` tokens in total: the longer text repeatedly loses its first or its last token, at random."""
    sides, lost = [first, second], [[0, 0], [0, 0]]
    sizes = [len(first), len(second)]
    while sum(sizes) > room:
        which = 0 if sizes[0] > sizes[1] else 1
        lost[which][int(random.random() < 0.5)] += 1
        sizes[which] -= 1
    a, b = (side[front : len(side) - back] for side, (front, back) in zip(sides, lost))
    return a, b
