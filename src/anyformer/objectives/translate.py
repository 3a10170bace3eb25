"""One text into another: translation, summaries [Vaswani et al. 2017]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from anyformer.inputs.truncation import count_truncated
from anyformer.objectives.examples import append_end, column_name, concatenate, texts_of, token_ids
from anyformer.objectives.objective import Record
from anyformer.objectives.rewrite import Rewrite
from anyformer.specs.checks import at_least
from anyformer.specs.messages import quote


class Translate(Rewrite, called=("seq2seq", "summarize", "machine translation", "teacher forcing")):
    """`prefix` stands before every source ("translate English to German: ", T5). A model with tokens for languages
    (M2M-100) needs the code of the language to write, and of the language it reads where that is not its folder's.

    Columns "source" and "target", texts or lists of them: a source in sentences is read as one text, and of several
    right targets the first is learnt. Beyond `length` and `target_length` tokens they are cut, and no more are written.
    """

    command: ClassVar[str] = "run translate RUN TEXT"

    smoothing: float = 0.1  # label smoothing
    prefix: str = ""
    source_language: str = ""
    target_language: str = ""
    length: int | None = None
    target_length: int | None = None

    def check(self) -> None:
        super().check()
        at_least(self, 2, "length", "target_length")

    @property
    def truncates(self) -> int | None:
        return self.length

    @property
    def columns(self) -> tuple[str, ...]:
        return ("source", "target")

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        if tokenizer.languages and not self.target_language:
            raise ValueError(f"target_language: the model writes {len(tokenizer.languages)} languages; which one?")
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


def truncate(ids: np.ndarray, length: int | None, tokenizer: Any) -> np.ndarray:
    """(T,) of at most `length` tokens, which end as before."""
    if length is None or len(ids) <= length:
        return ids
    count_truncated(len(ids) - length)
    after = max(len(tokenizer._special_ends[1]), 1)
    return np.concatenate([ids[: max(length - after, 1)], ids[-after:]])
