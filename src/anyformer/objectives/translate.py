"""One text into another: translation, summaries [Vaswani et al. 2017]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anyformer.objectives.examples import array, text_of, token_ids
from anyformer.objectives.objective import Record
from anyformer.objectives.rewrite import Rewrite


class Translate(Rewrite):
    """`prefix` stands before every source ("translate English to German: ", T5)."""

    smoothing: float = 0.1
    prefix: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        return ("source", "target")

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        source = token_ids(self.prefix + text_of(example, "source"), tokenizer, end=True)
        target = written(text_of(example, "target"), tokenizer)
        for name, ids in (("source", source), ("target", target)):
            if len(ids) < 2:
                raise ValueError(f"column {name!r} is empty")
        return {"input_ids": source, "labels": target}


def written(text: str, tokenizer: Any) -> np.ndarray:
    """(T,) ids of what the model has to write, its end token last; some tokenizers write with another vocabulary."""
    if tokenizer.writer is tokenizer.core:
        return token_ids(text, tokenizer, end=True)
    ids = tokenizer.writer.encode(tokenizer._text(text), add_special_tokens=False).ids
    return array([*ids, tokenizer.writer.token_to_id(tokenizer.special["eos_token"])])
