"""Span corruption [Raffel et al. 2020]: replace spans of a text with sentinels, and write the spans after them.

Thank you for inviting me to your party last week.
reads:   Thank you <extra_id_0> me to your party <extra_id_1> week.
writes:  <extra_id_0> for inviting <extra_id_1> last <extra_id_2>
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from anyformer.inputs.long import LongText
from anyformer.objectives.batches import Record
from anyformer.objectives.examples import add_ends
from anyformer.objectives.rewrite import Rewrite
from anyformer.objectives.spans import corrupt, count_spans, draw_spans
from anyformer.objectives.vocabulary_info import VocabularyInfo, VocabularyObjective
from anyformer.specs.field_types import OneOrMore, ProperFraction


class SpanCorruption(Rewrite, VocabularyObjective, called=("T5 pretraining",)):
    """Replace `rate` of the tokens, in spans of `mean` tokens on average. Rows of text are longer than the model's
    input, so that the corrupted text fills it."""

    packs: ClassVar[bool] = True

    rate: ProperFraction = 0.15
    mean: OneOrMore = 3.0

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
        noise, spans = count_spans(size, self.rate, self.mean)
        return size - noise + spans + 1

    def ids(self, text: str | LongText, tokenizer: Any) -> Iterator[list[int]]:
        yield from tokenizer.pieces(text, add_special_tokens=False)
        yield [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        ids, known = record["input_ids"], self.words
        removed = draw_spans(len(ids), self.rate, self.mean, random)
        source, target = corrupt(ids, removed, known.sentinels)
        return {"input_ids": add_ends(None, source, known.end), "labels": add_ends(None, target, known.end)}
