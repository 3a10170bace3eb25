"""Tables: JSON lines, CSV, TSV, Parquet, Hugging Face datasets, NumPy arrays, MNIST's and SQuAD's formats."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from anyformer.data.source import (
    BROKEN,
    LONGEST_LINE,
    TOO_LONG,
    UNDECODABLE,
    Files,
    Row,
    Source,
    detect_encoding,
    encoding_problem,
    known_encoding,
    lines,
    open_bytes,
    plain_suffix,
    read_text,
    read_whole,
    text_lines,
)
from anyformer.inputs.optional_library import import_optional
from anyformer.specs.messages import amount, nearest, quote
from anyformer.specs.part import Table

DELIMITERS = (",", ";", "\t", "|")  # if several fit equally well, the first is used
ROWS_TO_DETECT = 100  # rows read to detect the delimiter
MAX_ROW_LINES = MAX_CELLS = 2**20  # per row; each takes about 60 bytes of memory


class JSONLines(Files, called=("jsonl",)):
    """Read JSON lines: one object per line. A file may also be one list of objects."""

    encoding: str = "utf-8"

    def check(self) -> None:
        known_encoding(self.encoding)

    def endings(self) -> tuple[str, ...]:
        return (".jsonl", ".ndjson", ".json")

    def raw(self) -> Iterator[Row]:
        for file in self.files():
            first = True
            for number, line, problem in lines(file, self.encoding):
                place = f"{file}:{number}"
                if line is None:
                    yield Row(place, None, problem)
                elif line.strip():
                    if (
                        first
                        and line.lstrip().startswith("[")
                        and (values := _list_in(file, self.encoding)) is not None
                    ):
                        yield from (_as_row(f"{file}:{i}", value) for i, value in enumerate(values, 1))
                        break
                    first = False
                    yield _parse_object(place, line)


def _list_in(file: Path, encoding: str) -> list[Any] | None:
    """Return the items of a file that is one JSON list; None for any other file."""
    try:
        value = json.loads("".join(read_text(file, encoding)))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None


def _parse_object(place: str, line: str) -> Row:
    try:
        value = json.loads(line)
    except ValueError as error:
        return Row(place, None, f"not JSON ({error})")
    except RecursionError:
        return Row(place, None, "nested too deeply")
    return _as_row(place, value)


def _as_row(place: str, value: Any) -> Row:
    if not isinstance(value, dict):
        return Row(place, None, f"not a JSON object but a {type(value).__name__}")
    return Row(place, value)


class CSV(Files):
    """Read comma-separated values. The first line is the header, unless `names` is given. If `quote` is None, quotation
    marks are text."""

    delimiter: str = ","
    quote: str | None = '"'
    names: tuple[str, ...] = ()
    encoding: str = "utf-8"

    def check(self) -> None:
        known_encoding(self.encoding)
        if len(self.delimiter) != 1 or (self.quote is not None and len(self.quote) != 1):
            raise ValueError(f"{type(self).__name__}: delimiter and quote must be single characters")

    def endings(self) -> tuple[str, ...]:
        return (".csv", ".tsv", ".txt")

    def raw(self) -> Iterator[Row]:
        for file in self.files():
            names = self.names
            for place, cells, problem in self._cells(file):
                if problem:
                    yield Row(place, None, problem)
                elif not names:
                    names = column_names(cells)
                    if twice := [name for name, times in Counter(names).items() if times > 1]:
                        raise ValueError(f"{place}: two columns have the name {quote(twice[0])}; rename one of them")
                elif len(cells) < len(names) or any(cells[len(names) :]):  # spreadsheets put empty cells at the end
                    yield Row(place, None, f"{amount(len(cells), 'value')} for {amount(len(names), 'column')}")
                else:
                    yield Row(place, dict(zip(names, cells)))

    def _cells(self, file: Path) -> Iterator[tuple[str, list[str], str]]:
        """Yield (place, cells, problem) of each row. An unmatched quotation mark costs only one line: the lines after
        it, which the CSV reader took for the same row, are read again."""
        csv.field_size_limit(LONGEST_LINE)
        waiting, taken = deque[str](), list[str]()  # lines to read again, and lines of the current row
        begin, delimiters, characters = 1, 0, 0  # the current row: its first line, and what was read of it
        with open_bytes(file) as stream:
            text = _lines_of_cells(file, stream, self.encoding)

            def feed() -> Iterator[str]:
                nonlocal delimiters, characters
                while line := waiting.popleft() if waiting else next(text, ""):
                    taken.append(line)
                    delimiters, characters = delimiters + line.count(self.delimiter), characters + len(line)
                    if delimiters >= MAX_CELLS:
                        raise csv.Error(f"more than {MAX_CELLS:,} values")
                    if len(taken) > MAX_ROW_LINES or characters > LONGEST_LINE:
                        raise csv.Error(f"more than {MAX_ROW_LINES:,} lines or {LONGEST_LINE:,} characters")
                    yield line

            while True:
                reader = csv.reader(
                    feed(),
                    delimiter=self.delimiter,
                    quotechar=self.quote,
                    strict=True,
                    quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
                )
                try:
                    for cells in reader:
                        if cells:  # not an empty line
                            bad = any(UNDECODABLE in cell for cell in cells)
                            yield f"{file}:{begin}", cells, encoding_problem(self.encoding) if bad else ""
                        begin, delimiters, characters = begin + len(taken), 0, 0
                        taken.clear()
                    return
                except csv.Error as error:
                    too_wide = len(taken) == 1 and delimiters >= MAX_CELLS
                    yield f"{file}:{begin}", [], str(error) if too_wide else f"unmatched quotation mark ({error})"
                    waiting.extendleft(reversed(taken[1:]))
                    begin, delimiters, characters = begin + 1, 0, 0
                    taken.clear()
                except BROKEN as error:
                    raise ValueError(f"{file}, after line {begin - 1}: cannot be read ({error})") from None


def column_names(cells: list[str]) -> tuple[str, ...]:
    """Return the names in a header; a column without a name is called "column 3"."""
    return tuple(cell.strip() or f"column {i}" for i, cell in enumerate(cells, 1))


def _lines_of_cells(file: Path, stream: IO[bytes], encoding: str) -> Iterator[str]:
    for number, line in enumerate(text_lines(stream, encoding, newline=""), 1):
        if line is None:
            raise ValueError(f"{file}:{number}: {TOO_LONG}")
        yield line


class TSV(CSV):
    """Read tab-separated values. Quotation marks are text, as in GLUE's files."""

    delimiter: str = "\t"
    quote: str | None = None


def open_table(
    path: str,
    wanted: Sequence[str] = (),
    *,
    delimiter: str | None = None,
    encoding: str | None = None,
    jsonl: bool = False,
) -> CSV | JSONLines:
    """Return the source of a table file. JSON lines are recognized by suffix (or `jsonl`). The encoding and delimiter
    are detected unless given; `wanted` are columns that the header should contain."""
    plain: CSV | JSONLines = JSONLines(path=path) if jsonl else CSV(path=path)
    file = plain.files()[0]
    encoding = encoding or detect_encoding(file)
    if jsonl or plain_suffix(file) in JSONLines(path=path).endings():
        return JSONLines(path=path, encoding=encoding)
    if delimiter is None and plain_suffix(file) == ".tsv":
        tabs = TSV(path=path, encoding=encoding)
        if detect_delimiter(tabs, file, wanted) == tabs.delimiter:
            return tabs
    table = CSV(path=path, encoding=encoding)
    return table.replace(delimiter=delimiter or detect_delimiter(table, file, wanted))


def detect_delimiter(table: CSV, file: Path, wanted: Sequence[str] = ()) -> str:
    """Return the delimiter with which the header has the `wanted` columns and most rows are as long as the header."""

    def score(delimiter: str) -> tuple[bool, int, int]:
        rows = (cells for _, cells, _ in islice(table.replace(delimiter=delimiter)._cells(file), ROWS_TO_DETECT))
        header = column_names(next(rows, []))
        alike = sum(len(cells) == len(header) for cells in rows) if len(header) > 1 else 0
        return {*wanted} <= {*header}, alike, len(header)

    return max(DELIMITERS, key=score)


class Parquet(Files):
    """Read Parquet files, one example per row."""

    def endings(self) -> tuple[str, ...]:
        return (".parquet",)

    def raw(self) -> Iterator[Row]:
        parquet = import_optional("pyarrow.parquet", "data", "Parquet")
        for file in self.files():
            number = 0
            try:
                with parquet.ParquetFile(file) as table:
                    for batch in table.iter_batches(batch_size=4096):
                        for example in batch.to_pylist():
                            number += 1
                            yield Row(f"{file}:{number}", example)
            except (OSError, import_optional("pyarrow", "data", "Parquet").ArrowException) as error:
                raise ValueError(f"{file}, after row {number}: {str(error).splitlines()[0]}") from None


class HFDataset(Source, called=("datasets",)):
    """A data set of the Hugging Face hub, or a folder written by `datasets`."""

    name: str
    config: str | None = None
    split: str = "train"
    revision: str | None = None

    def _dataset(self) -> Any:
        datasets = import_optional("datasets", "data", "a Hugging Face data set")
        if not sys.stderr.isatty():
            datasets.disable_progress_bars()
        try:
            if (Path(self.name) / "dataset_dict.json").is_file() or (Path(self.name) / "state.json").is_file():
                dataset = datasets.load_from_disk(self.name)
                if isinstance(dataset, dict):
                    if self.split not in dataset:
                        raise ValueError(f"no split {quote(self.split)}; {nearest(self.split, dataset)}")
                    return dataset[self.split]
                return dataset
            return datasets.load_dataset(self.name, self.config, split=self.split, revision=self.revision)
        except ConnectionError as error:
            raise ConnectionError(f"data set {self.name} cannot be reached: {str(error).splitlines()[0]}") from None
        except (OSError, ValueError) as error:
            raise ValueError(f"data set {self.name}: {str(error).splitlines()[0]}") from None

    def raw(self) -> Iterator[Row]:
        for number, example in enumerate(self._dataset(), 1):
            yield Row(f"{self.name}/{self.split}:{number}", example)

    def digest(self) -> str:
        return str(self._dataset()._fingerprint)  # depends on the content and on every transformation


class Arrays(Files):
    """Read NumPy's .npz: row i of every array in `fields` (default: all arrays) is example i."""

    fields: Mapping[str, str] = Table()  # name in the example -> name in the file

    def endings(self) -> tuple[str, ...]:
        return (".npz",)

    def raw(self) -> Iterator[Row]:
        for file in self.files():
            try:
                with np.load(file, allow_pickle=False) as stored:
                    names = dict(self.fields) or {name: name for name in stored.files}
                    for name in names.values():
                        if name not in stored.files:
                            raise ValueError(f"no array {quote(name)}; {nearest(name, stored.files)}")
                    arrays = {key: stored[name] for key, name in names.items()}
            except (OSError, ValueError, EOFError) as error:
                raise ValueError(f"{file}: {error}") from None
            if len({a.shape[:1] for a in arrays.values()}) != 1:
                shapes = ", ".join(f"{key} {a.shape}" for key, a in arrays.items())
                raise ValueError(f"{file}: arrays of unequal length ({shapes}); choose arrays with fields")
            for i in range(len(next(iter(arrays.values())))):
                yield Row(f"{file}:{i + 1}", {key: a[i] for key, a in arrays.items()})


class IDX(Files):
    """Read IDX files of bytes, as MNIST's: one example per item of the first dimension."""

    name: str  # column that contains the bytes

    def endings(self) -> tuple[str, ...]:
        return (".idx3-ubyte", ".idx1-ubyte")

    def raw(self) -> Iterator[Row]:
        for file in self.files():
            try:
                content = read_whole(file)
            except (*BROKEN, ValueError) as error:
                raise ValueError(f"{file}: {error}") from None
            start = 4 * (1 + content[3]) if content[:3] == bytes((0, 0, 8)) and len(content) > 3 else 4
            shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
            if not 0 < len(shape) <= 8 or math.prod(shape) != len(content) - start:
                raise ValueError(f"{file}: not an IDX file of bytes like MNIST's, or truncated")
            for i, row in enumerate(np.frombuffer(content, np.uint8, offset=start).reshape(shape), 1):
                yield Row(f"{file}:{i}", {self.name: row})


class SQuAD(Files):
    """Read files in SQuAD's format: {"id", "question", "context", "answers": {"text": [..], "answer_start": [..]}}."""

    def endings(self) -> tuple[str, ...]:
        return (".json",)

    def raw(self) -> Iterator[Row]:
        for file in self.files():
            try:
                articles = json.loads(read_whole(file))["data"]
                paragraphs = list(chain.from_iterable(article["paragraphs"] for article in articles))
            except (*BROKEN, ValueError, KeyError, TypeError, RecursionError) as error:
                raise ValueError(f"{file}: not in SQuAD's format ({type(error).__name__}: {error})") from None
            number = 0
            for paragraph in paragraphs:
                for entry in paragraph.get("qas", ()):
                    number += 1
                    try:
                        answers = entry.get("answers", [])
                        yield Row(
                            f"{file}:{number}",
                            {
                                "id": entry["id"],
                                "question": entry["question"],
                                "context": paragraph["context"],
                                "answers": {
                                    key: [answer[key] for answer in answers] for key in ("text", "answer_start")
                                },
                            },
                        )
                    except (KeyError, TypeError) as error:
                        yield Row(f"{file}:{number}", None, f"question {number} has no {error}")
