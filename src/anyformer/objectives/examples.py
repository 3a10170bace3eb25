"""Raw examples: columns, labels and texts to numbers, each mistake one clear line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anyformer.inputs.long import LongText
from anyformer.specs.messages import nearest, quote

Example = Mapping[str, Any]


class RenamedExample(dict[str, Any]):
    """An example by the objective's names of its columns; `columns` are the data's own names, for messages."""

    columns: Mapping[str, str]


def column_name(example: Example, column: str) -> str:
    """The name of a column in the user's data."""
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
    """The texts of a column, a text or a list, as a list that is not empty."""
    value = field(example, column)
    if not isinstance(value, (list, tuple)):
        return [text_of(example, column)]
    if not value or not all(isinstance(one, str) for one in value):
        raise ValueError(f"column {quote(column_name(example, column))} must hold a list of texts")
    return list(value)


def label_of(example: Example, column: str, labels: Sequence[str]) -> int:
    """The number of a label: its place among `labels`, by name, or a number that is one."""
    return label_number(field(example, column), labels, column_name(example, column))


def label_number(value: Any, labels: Sequence[str], column: str) -> int:
    """By name first: among the labels "1", "2", "3" the number 1 is the first, not the second."""
    name = str(value).strip()
    if name in labels:
        return labels.index(name)
    try:
        number = int(value)
        if number != float(value):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        hint = nearest(name, labels)
        raise ValueError(f"column {quote(column)}: label {quote(value)} is not known; {hint}") from None
    if not 0 <= number < len(labels):
        raise ValueError(f"column {quote(column)}: label {number} is outside 0..{len(labels) - 1}")
    return number


def token_ids(text: str | LongText, tokenizer: Any, end: bool = False) -> np.ndarray:
    """(T,) ids with the tokenizer's special tokens; `end` adds its end token where none stands there."""
    parts = tokenizer.pieces(text)
    return concatenate(append_end(parts, tokenizer) if end else parts)


def append_end(parts: Iterable[list[int]], tokenizer: Any) -> Iterator[list[int]]:
    """With the tokenizer's end token last, where it has one."""
    end, last = tokenizer.eos_token_id, None
    for part in parts:
        yield part
        last = part[-1] if part else last
    if end is not None and last != end:
        yield [end]


def concatenate(parts: Iterable[list[int]]) -> np.ndarray:
    """(T,) of parts that may be many."""
    return np.concatenate([array([]), *map(array, parts)])


def array(ids: Any) -> np.ndarray:
    return np.asarray(ids, dtype=np.int32)


def add_ends(before: int | None, ids: np.ndarray, after: int | None) -> np.ndarray:
    """(T,) with a token before and one after, where there are such."""
    ends = [array([] if place is None else [place]) for place in (before, after)]
    return np.concatenate([ends[0], array(ids), ends[1]])


def encode_pair(tokenizer: Any, text: str, pair: str | None = None, length: int | None = None) -> dict[str, np.ndarray]:
    """ "input_ids" and, for a pair, "token_type_ids"; of at most `length` tokens, the longer of a pair cut first."""
    encoding = tokenizer._encode(text, pair, length, True)
    record = {"input_ids": array(tokenizer._ids(encoding))}
    if not len(record["input_ids"]):
        raise ValueError("the text has no tokens")
    return record if pair is None else {**record, "token_type_ids": array(encoding.type_ids)}
