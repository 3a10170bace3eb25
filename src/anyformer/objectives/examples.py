"""Conversion of the columns, labels and texts of raw examples to numbers, with one-line errors."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anyformer.inputs.long import LongText
from anyformer.specs.messages import nearest, quote

Example = Mapping[str, Any]


class RenamedExample(dict[str, Any]):
    """An example whose keys are the objective's column names; `columns` maps them to the data's names, for messages."""

    columns: Mapping[str, str]


def column_name(example: Example, column: str) -> str:
    """Return the name of a column in the user's data."""
    return example.columns.get(column, column) if isinstance(example, RenamedExample) else column


def field(example: Example, column: str) -> Any:
    if column not in example:
        raise ValueError(f"no column {quote(column_name(example, column))}; {nearest(column, example)}")
    return example[column]


def text_of(example: Example, column: str) -> str:
    value = field(example, column)
    if isinstance(value, LongText):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError(f"column {quote(column_name(example, column))} holds {type(value).__name__}, not text")
    return value


def texts_of(example: Example, column: str) -> list[str]:
    """Return the texts of a column that contains a text or a list of texts."""
    value = field(example, column)
    if not isinstance(value, (list, tuple)):
        return [text_of(example, column)]
    if not value or not all(isinstance(one, str) for one in value):
        raise ValueError(f"column {quote(column_name(example, column))} must hold a list of texts")
    return list(value)


def label_of(example: Example, column: str, labels: Sequence[str]) -> int:
    """Return the index of an example's label, which is given by name or by index."""
    return label_number(field(example, column), labels, column_name(example, column))


def label_number(value: Any, labels: Sequence[str], column: str) -> int:
    """Return the index of a label. If there are labels that are numbers, a number is never an index: of the labels "1",
    "2" and "5", the values 1 and "1.0" are the first, and 0 is unknown."""
    name, numbers = str(value).strip(), numeric_labels(tuple(labels))
    if name in labels:
        return labels.index(name)
    try:
        if numbers:
            return numbers[float(value)]
        number = int(value)
        if number != float(value):
            raise ValueError
    except (TypeError, ValueError, KeyError, OverflowError):
        hint = nearest(name, labels)
        raise ValueError(f"column {quote(column)}: label {quote(value)} is not known; {hint}") from None
    if not 0 <= number < len(labels):
        raise ValueError(f"column {quote(column)}: label {number} is outside 0..{len(labels) - 1}")
    return number


@functools.cache
def numeric_labels(labels: tuple[str, ...]) -> dict[float, int]:
    """Return the index of each label that is a number, by its value."""
    values = dict[float, int]()
    for i, label in enumerate(labels):
        with contextlib.suppress(ValueError):
            values.setdefault(float(label), i)
    return values


def token_ids(text: str | LongText, tokenizer: Any, end: bool = False) -> np.ndarray:
    """Return ids (T,) with the tokenizer's special tokens; `end` appends its end token if it is missing."""
    parts = tokenizer.pieces(text)
    return concatenate(append_end(parts, tokenizer) if end else parts)


def append_end(parts: Iterable[list[int]], tokenizer: Any) -> Iterator[list[int]]:
    """Yield the parts, and then the tokenizer's end token if it has one and the text does not end with it."""
    end, last = tokenizer.eos_token_id, None
    for part in parts:
        yield part
        last = part[-1] if part else last
    if end is not None and last != end:
        yield [end]


def concatenate(parts: Iterable[list[int]]) -> np.ndarray:
    """Join lists of ids into one array (T,)."""
    return np.concatenate([array([]), *map(array, parts)])


def array(ids: Any) -> np.ndarray:
    return np.asarray(ids, dtype=np.int32)


def add_ends(before: int | None, ids: np.ndarray, after: int | None) -> np.ndarray:
    """Add the token `before` at the front and `after` at the end, if they are not None."""
    ends = [array([] if token is None else [token]) for token in (before, after)]
    return np.concatenate([ends[0], array(ids), ends[1]])


def encode_pair(tokenizer: Any, text: str, pair: str | None = None, length: int | None = None) -> dict[str, np.ndarray]:
    """Return "input_ids" and, for a pair, "token_type_ids", truncated to `length` tokens, the longer text first."""
    encoding = tokenizer._encode(text, pair, length, True)
    record = {"input_ids": array(tokenizer._ids(encoding))}
    if not len(record["input_ids"]):
        raise ValueError("the text has no tokens")
    return record if pair is None else {**record, "token_type_ids": array(encoding.type_ids)}
