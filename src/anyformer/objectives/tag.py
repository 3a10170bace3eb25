"""A label for each word [Devlin et al. 2019, section 5.3]: entities, parts of speech."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import nn

from anyformer.kernels.loss import IGNORED
from anyformer.models.base import TransformerModule
from anyformer.objectives.examples import array, column_name, field, label_number
from anyformer.objectives.objective import Batch, Objective, Record, head_of, pad_rows, pad_texts
from anyformer.parts.head.tag import TagModule
from anyformer.specs.messages import quote

LABEL_ALL_TOKENS = "label_all_tokens"  # the field of `source` that keeps `Tag.every` with the model
OPENING, CLOSING = r"[(\[{\"“‘«¿¡]*", r"[)\]}\"”»,;:!?….]*$"
ABBREVIATION = re.compile(r"\w(\.\w)+")  # U.S


class Tag(Objective, called=("NER",)):
    """Columns "words" and "tags", lists or texts with spaces between. A word's label belongs to its first token, and
    nothing is asked about the others; with `every`, each of its tokens has it. The tag -100 asks nothing."""

    command: ClassVar[str] = "run tag RUN TEXT"

    labels: tuple[str, ...]
    every: bool = False

    def check(self) -> None:
        if len(self.labels) < 2 or len(set(self.labels)) < len(self.labels):
            raise ValueError("Tag.labels: at least two, and none twice")

    @property
    def columns(self) -> tuple[str, ...]:
        return ("words", "tags")

    @property
    def source_fields(self) -> dict[str, Any]:
        return {LABEL_ALL_TOKENS: self.every}

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        words, tags = word_list(example, "words"), word_list(example, "tags")
        if len(words) != len(tags):
            raise ValueError(f"{len(words)} words and {len(tags)} tags")
        if not words:
            raise ValueError(f"column {column_name(example, 'words')!r} is empty")
        numbers = self.numbers(example)
        ids, places = word_tokens([str(word) for word in words], tokenizer)
        labels, before = np.full(len(ids), IGNORED, np.int32), -1
        for i, word in enumerate(places.tolist()):
            if word >= 0 and (self.every or word != before):
                labels[i] = numbers[word]
            before = word if word >= 0 else before
        return {"input_ids": ids, "labels": labels}

    def numbers(self, example: Mapping[str, Any]) -> list[int]:
        """Of the label of each word; -100 where nothing is asked."""
        column = column_name(example, "tags")
        return [
            IGNORED if str(tag) == str(IGNORED) else label_number(tag, self.labels, column)
            for tag in word_list(example, "tags")
        ]

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        return {**pad_texts(records, pad), "labels": pad_rows([record["labels"] for record in records], IGNORED)}

    def module(self, model: TransformerModule) -> nn.Module:
        head = head_of(model, TagModule, "tagging")
        if head.out.out_features != len(self.labels):
            raise ValueError(f"{len(self.labels)} labels in the objective, {head.out.out_features} in the model")
        return model


def word_list(example: Mapping[str, Any], column: str) -> Sequence[Any]:
    value = field(example, column)
    if isinstance(value, str):
        return value.split()
    if not isinstance(value, Sequence):
        raise ValueError(f"column {quote(column_name(example, column))} holds {type(value).__name__}, not a list")
    return value


def word_tokens(words: Sequence[str], tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
    """Ids (T,) of the words with single spaces between, and which word each token is of; -1 for special tokens."""
    encoding = tokenizer._encode(" ".join(words), None, None, True)
    return array(tokenizer._ids(encoding)), array(token_words(words, encoding))


def token_words(words: Sequence[str], encoding: Any) -> list[int]:
    """Which word each token of " ".join(words), or of a part of it, is of; -1 for special tokens."""
    ends = np.cumsum([len(word) + 1 for word in words])  # a word and the space after it
    # by its last character: a token may begin with the space before the word
    return [
        -1 if sequence is None or stop <= start else int(np.searchsorted(ends, stop - 1, side="right"))
        for sequence, (start, stop) in zip(encoding.sequence_ids, encoding.offsets)
    ]


def split_words(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of each word of a text, as files with a label for each word usually divide it: at spaces, and marks
    such as brackets, commas and full stops before or after a word are words of their own."""
    for chunk in re.finditer(r"\S+", text):
        opening, closing = re.match(OPENING, chunk[0]), re.search(CLOSING, chunk[0])
        assert opening is not None and closing is not None  # both may be empty
        first, last = chunk.start() + opening.end(), chunk.start() + closing.start()
        if first >= last:  # nothing but marks: ":)", "..."
            yield chunk.span()
            continue
        last += text[last : last + 1] == "." and ABBREVIATION.fullmatch(text, first, last) is not None
        yield from ((place, place + 1) for place in range(chunk.start(), first))
        yield first, last
        yield from (run.span() for run in re.compile(r"(.)\1*").finditer(text, last, chunk.end()))
