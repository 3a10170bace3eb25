"""Predict a label for each word [Devlin et al. 2019, section 5.3]: named entities, parts of speech."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import nn

from anyformer.kernels.loss import IGNORED
from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record, pad_rows, pad_texts
from anyformer.objectives.examples import array, column_name, field, label_number
from anyformer.objectives.heads import head_of
from anyformer.objectives.metrics import TAGS, Metrics
from anyformer.objectives.objective import Example, Objective, Predictions, Predictor
from anyformer.parts.head.tag import TagModule
from anyformer.specs.messages import quote

LABEL_ALL_TOKENS = "label_all_tokens"  # the field of `source` that saves `Tag.every`
OPENING, CLOSING = r"[(\[{\"“‘«¿¡]*", r"[)\]}\"”»,;:!?….]*$"
ABBREVIATION = re.compile(r"\w(\.\w)+")  # U.S


class Tag(Objective, called=("NER",)):
    """Columns "words" and "tags", lists or texts split at spaces. The label of a word belongs to its first token, or
    with `every` to all its tokens; other tokens have no label. Words with the tag -100 are ignored."""

    command: ClassVar[str] = "run tag RUN TEXT"
    metrics: ClassVar[Metrics] = TAGS
    columns: ClassVar[tuple[str, ...]] = ("words", "tags")

    labels: tuple[str, ...]
    every: bool = False

    def check(self) -> None:
        if len(self.labels) < 2 or len(set(self.labels)) < len(self.labels):
            raise ValueError("Tag.labels needs at least two labels, all different")

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
        ids, token_word = word_tokens([str(word) for word in words], tokenizer)
        labels, previous = np.full(len(ids), IGNORED, np.int32), -1
        for i, word in enumerate(token_word.tolist()):
            if word >= 0 and (self.every or word != previous):
                labels[i] = numbers[word]
            previous = word if word >= 0 else previous
        return {"input_ids": ids, "labels": labels}

    def numbers(self, example: Mapping[str, Any]) -> list[int]:
        """Return the label index of each word, or -100 to ignore it."""
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

    def predict(self, job: Predictor, examples: Sequence[Example], records: Sequence[list[Record]]) -> Predictions:
        """Predict a tag per labelled word, from its first token. A word without tokens (its characters are not in the
        vocabulary) gets the tag "O"."""
        outside = "O" if "O" in self.labels else self.labels[0]
        predicted, wanted = [], []
        for example, scores in zip(examples, job.logits(self, [record for (record,) in records])):
            words = [str(word) for word in word_list(example, "words")]
            tagged = [outside] * len(words)
            word_indices = word_tokens(words, job.tokenizer)[1].tolist()
            for index, best in reversed(list(zip(word_indices, scores.argmax(-1).tolist()))):
                if index >= 0:
                    tagged[index] = self.labels[best]
            labelled = [(i, number) for i, number in enumerate(self.numbers(example)) if number != IGNORED]
            predicted.append([tagged[i] for i, _ in labelled])
            wanted.append([self.labels[number] for _, number in labelled])
        return Predictions(predicted, wanted)


def word_list(example: Mapping[str, Any], column: str) -> Sequence[Any]:
    value = field(example, column)
    if isinstance(value, str):
        return value.split()
    if not isinstance(value, Sequence):
        raise ValueError(f"column {quote(column_name(example, column))} holds {type(value).__name__}, not a list")
    return value


def word_tokens(words: Sequence[str], tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids (T,) of the words joined by spaces, and the word index of each token, -1 for special tokens."""
    encoding = tokenizer._encode(" ".join(words), None, None, True)
    return array(tokenizer._ids(encoding)), array(token_words(words, encoding))


def token_words(words: Sequence[str], encoding: Any) -> list[int]:
    """Return the word index of each token of " ".join(words), or of a part of it; -1 for special tokens."""
    ends = np.cumsum([len(word) + 1 for word in words])  # a word and the space after it
    # look up the last character, because a token may begin with the space before its word
    return [
        -1 if sequence is None or stop <= start else int(np.searchsorted(ends, stop - 1, side="right"))
        for sequence, (start, stop) in zip(encoding.sequence_ids, encoding.offsets)
    ]


def split_words(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each word of a text. Words end at spaces; brackets, commas and full stops around a word are
    words of their own, as in most files of labelled words."""
    for chunk in re.finditer(r"\S+", text):
        opening, closing = re.match(OPENING, chunk[0]), re.search(CLOSING, chunk[0])
        assert opening is not None and closing is not None  # both patterns match an empty string
        first, last = chunk.start() + opening.end(), chunk.start() + closing.start()
        if first >= last:  # only marks: ":)", "..."
            yield chunk.span()
            continue
        last += text[last : last + 1] == "." and ABBREVIATION.fullmatch(text, first, last) is not None
        yield from ((i, i + 1) for i in range(chunk.start(), first))
        yield first, last
        yield from (run.span() for run in re.compile(r"(.)\1*").finditer(text, last, chunk.end()))
