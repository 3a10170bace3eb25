"""A label for each word [Devlin et al. 2019, section 5.3]: entities, parts of speech."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from anyformer.kernels.loss import IGNORED
from anyformer.messages import quote
from anyformer.model.base import TransformerModule
from anyformer.objectives.examples import array, field, label_number
from anyformer.objectives.objective import Batch, Objective, Record, head_of, padded, padded_texts
from anyformer.parts.head import TagModule


class Tag(Objective, called=("NER",)):
    """Columns "words" and "tags", lists or texts with spaces between. A word's label belongs to its first token, and
    nothing is asked about the others; with `every`, each of its tokens has it."""

    labels: tuple[str, ...]
    every: bool = False

    def check(self) -> None:
        if len(self.labels) < 2 or len(set(self.labels)) < len(self.labels):
            raise ValueError("Tag.labels: at least two, and none twice")

    @property
    def columns(self) -> tuple[str, ...]:
        return ("words", "tags")

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        words, tags = listed(example, "words"), listed(example, "tags")
        if len(words) != len(tags):
            raise ValueError(f"{len(words)} words and {len(tags)} tags")
        if not words:
            raise ValueError("column 'words' is empty")
        numbers = [label_number(tag, self.labels, "tags") for tag in tags]
        ids, places = word_tokens([str(word) for word in words], tokenizer)
        labels, before = np.full(len(ids), IGNORED, np.int32), -1
        for i, word in enumerate(places.tolist()):
            if word >= 0 and (self.every or word != before):
                labels[i] = numbers[word]
            before = word if word >= 0 else before
        return {"input_ids": ids, "labels": labels}

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        return {**padded_texts(records, pad), "labels": padded([record["labels"] for record in records], IGNORED)}

    def module(self, model: TransformerModule) -> nn.Module:
        head = head_of(model, TagModule, "tagging")
        if head.out.out_features != len(self.labels):
            raise ValueError(f"{len(self.labels)} labels, and the model tells {head.out.out_features} apart")
        return model


def listed(example: Mapping[str, Any], column: str) -> Sequence[Any]:
    value = field(example, column)
    if isinstance(value, str):
        return value.split()
    if not isinstance(value, Sequence):
        raise ValueError(f"column {quote(column)} holds {type(value).__name__}, not a list")
    return value


def word_tokens(words: Sequence[str], tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
    """Ids (T,) of the words with single spaces between, and which word each token is of; -1 for special tokens."""
    encoding = tokenizer._encode(" ".join(words), None, None, True)
    ends = np.cumsum([len(word) + 1 for word in words])  # a word and the space after it
    # by its last character: a token may begin with the space before the word
    places = [
        -1 if sequence is None or stop <= start else int(np.searchsorted(ends, stop - 1, side="right"))
        for sequence, (start, stop) in zip(encoding.sequence_ids, encoding.offsets)
    ]
    return array(tokenizer._ids(encoding)), array(places)
