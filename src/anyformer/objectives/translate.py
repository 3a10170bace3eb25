"""Translation, summarization and other tasks from text to text [Vaswani et al. 2017]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from anyformer.inputs.truncation import count_truncated
from anyformer.objectives.batches import Record
from anyformer.objectives.examples import append_end, column_name, concatenate, texts_of, token_ids
from anyformer.objectives.metrics import TEXTS, Metrics
from anyformer.objectives.objective import LOSS_METRICS, Example, Predictions, Predictor
from anyformer.objectives.rewrite import Rewrite
from anyformer.specs.field_types import Chance, TwoOrMore
from anyformer.specs.messages import quote


class Translate(Rewrite, called=("seq2seq", "summarize", "machine translation", "teacher forcing")):
    """Columns "source" and "target", texts or lists of texts: a list of source sentences is joined, and the first of
    several targets is learnt. They are truncated to `length` and `target_length` tokens, also in generation.

    `prefix` is added before every source ("translate English to German: ", T5). A model with language tokens (M2M-100)
    needs a `target_language`, and a `source_language` if it differs from the tokenizer's.
    """

    command: ClassVar[str] = "run translate RUN TEXT"
    loss_metrics: ClassVar[tuple[str, ...]] = LOSS_METRICS
    metrics: ClassVar[Metrics] = TEXTS
    columns: ClassVar[tuple[str, ...]] = ("source", "target")

    smoothing: Chance = 0.1  # label smoothing
    prefix: str = ""
    source_language: str = ""
    target_language: str = ""
    length: TwoOrMore | None = None
    target_length: TwoOrMore | None = None

    @property
    def truncates(self) -> int | None:
        return self.length

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        if tokenizer.languages and not self.target_language:
            raise ValueError(f"target_language: choose one of the model's {len(tokenizer.languages)} languages")
        reads = tokenizer.in_language(self.source_language) if self.source_language else tokenizer
        writes = tokenizer.in_language(self.target_language) if self.target_language else tokenizer
        source = token_ids(self.prefix + " ".join(texts_of(example, "source")), reads, end=True)
        target = concatenate(append_end([writes.encode_target(texts_of(example, "target")[0])], writes))
        for name, ids in (("source", source), ("target", target)):
            if len(ids) < 2:
                raise ValueError(f"column {quote(column_name(example, name))} is empty")
        return {
            "input_ids": truncate(source, self.length, reads),
            "labels": truncate(target, self.target_length, writes),
        }

    def predict(self, job: Predictor, examples: Sequence[Example], records: Sequence[list[Record]]) -> Predictions:
        to = self.target_language
        language = {"forced_bos_token_id": job.tokenizer.language_id(to)} if to else {}
        room = {"max_new_tokens": self.target_length} if self.target_length else {}
        rows = [record for (record,) in records]
        predicted = job.texts(self, rows, num_beams=job.num_beams, **language, **room)
        right = [texts_of(example, "target") for example in examples]
        return Predictions(predicted, [own if len(own) > 1 else own[0] for own in right])

    def target_bytes(self, example: Example) -> int:
        return len(texts_of(example, "target")[0].encode())


def truncate(ids: np.ndarray, length: int | None, tokenizer: Any) -> np.ndarray:
    """Truncate ids (T,) to `length` tokens, and keep the special tokens at the end."""
    if length is None or len(ids) <= length:
        return ids
    count_truncated(len(ids) - length)
    after = max(len(tokenizer._special_ends[1]), 1)
    return np.concatenate([ids[: max(length - after, 1)], ids[-after:]])
