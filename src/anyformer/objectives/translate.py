"""One text into another: translation, summaries [Vaswani et al. 2017]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.objectives.examples import ended, flat, text_of, token_ids
from anyformer.objectives.objective import Record
from anyformer.objectives.rewrite import Rewrite


class Translate(Rewrite, called=("seq2seq", "summarize")):
    """`prefix` stands before every source ("translate English to German: ", T5). A model with tokens for languages
    (M2M-100) is told the code of the one to write, and of the one it reads where that is not its folder's."""

    smoothing: float = 0.1
    prefix: str = ""
    source_language: str = ""
    target_language: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        return ("source", "target")

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        if tokenizer.languages and not self.target_language:
            raise ValueError(f"target_language: the model writes {len(tokenizer.languages)} languages; which one?")
        reads = tokenizer.in_language(self.source_language) if self.source_language else tokenizer
        writes = tokenizer.in_language(self.target_language) if self.target_language else tokenizer
        source = token_ids(self.prefix + text_of(example, "source"), reads, end=True)
        target = flat(ended([writes.encode_target(text_of(example, "target"))], writes))
        for name, ids in (("source", source), ("target", target)):
            if len(ids) < 2:
                raise ValueError(f"column {name!r} is empty")
        return {"input_ids": source, "labels": target}
