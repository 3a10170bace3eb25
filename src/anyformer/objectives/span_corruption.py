"""Span corruption [Raffel et al. 2020]: replace spans of a text with sentinels, and write the spans after them.

Thank you for inviting me to your party last week.
reads:   Thank you <extra_id_0> me to your party <extra_id_1> week.
writes:  <extra_id_0> for inviting <extra_id_1> last <extra_id_2>
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from anyformer.inputs.long import LongText
from anyformer.objectives.batches import Record
from anyformer.objectives.examples import add_ends
from anyformer.objectives.rewrite import Rewrite
from anyformer.objectives.vocabulary_info import VocabularyInfo, VocabularyObjective
from anyformer.specs.field_types import OneOrMore


class SpanCorruption(Rewrite, VocabularyObjective, called=("T5 pretraining",)):
    """Replace `rate` of the tokens, in spans of `mean` tokens on average. Rows of text are longer than the model's
    input, so that the corrupted text fills it."""

    packs: ClassVar[bool] = True

    rate: float = 0.15
    mean: OneOrMore = 3.0

    def check(self) -> None:
        super().check()
        if not 0 < self.rate < 1:
            raise ValueError(f"SpanCorruption.rate is {self.rate}; it must be between 0 and 1")

    def needs(self, known: VocabularyInfo) -> None:
        if not known.sentinels:
            raise ValueError("span corruption needs a tokenizer with the tokens <extra_id_0>, <extra_id_1>, ...")

    def reads(self, length: int) -> int:
        """Return the most tokens of text whose corrupted form, with the end token, has at most `length` tokens."""
        size = length
        while self.source_length(size + 1) <= length:
            size += 1
        return size

    def source_length(self, size: int) -> int:
        noise, spans = self.amounts(size)
        return size - noise + spans + 1

    def amounts(self, size: int) -> tuple[int, int]:
        """Return how many of `size` tokens are removed, and in how many spans. At least one is removed and one kept."""
        noise = min(max(round(size * self.rate), 1), size - 1)
        return noise, min(max(round(noise / self.mean), 1), size - noise)

    def ids(self, text: str | LongText, tokenizer: Any) -> Iterator[list[int]]:
        yield from tokenizer.pieces(text, add_special_tokens=False)
        yield [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        ids, known = record["input_ids"], self.words
        removed = self.spans(len(ids), random)
        source, target = corrupt(ids, removed, known.sentinels)
        return {"input_ids": add_ends(None, source, known.end), "labels": add_ends(None, target, known.end)}

    def spans(self, size: int, random: np.random.Generator) -> np.ndarray:
        """(T,) True for removed tokens. Kept and removed pieces alternate, starting with a kept one."""
        if size < 2:
            return np.zeros(size, bool)
        noise, spans = self.amounts(size)
        lengths = np.stack([pieces(size - noise, spans, random), pieces(noise, spans, random)], axis=1).ravel()
        return np.repeat(np.arange(2 * spans) % 2 == 1, lengths)


def pieces(total: int, number: int, random: np.random.Generator) -> np.ndarray:
    """Draw `number` lengths of at least 1 with the sum `total`; all divisions are equally likely."""
    cuts = np.sort(random.permutation(total - 1)[: number - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))


def corrupt(ids: np.ndarray, removed: np.ndarray, sentinels: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return source and target. If the text ends with a kept piece, the target ends with one more sentinel."""
    starts = removed & ~np.concatenate([[False], removed[:-1]])
    spans = int(starts.sum())
    last = spans if len(removed) and not removed[-1] else spans - 1
    if last >= len(sentinels):
        raise ValueError(f"{last + 1} spans but {len(sentinels)} sentinels: use shorter rows or longer spans")
    marks = np.asarray(sentinels)[np.maximum(np.cumsum(starts) - 1, 0)]  # (T,) sentinel of the last span so far
    source = np.where(starts, marks, ids)[~removed | starts]
    which = np.flatnonzero(removed)
    targets = np.arange(len(which)) + np.cumsum(starts[which])  # after the sentinels of this and earlier spans
    target = np.empty(len(which) + spans, ids.dtype)
    target[targets] = ids[which]
    first = np.flatnonzero(starts[which])
    target[targets[first] - 1] = marks[starts]
    return source, target if last < spans else np.append(target, sentinels[last])
