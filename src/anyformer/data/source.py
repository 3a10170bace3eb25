"""The base classes of data sources: Parts that yield rows and have a fingerprint of their content.

A row is an example or a problem, with its location ("train.csv:17"), so that unreadable rows are reported and counted.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import dataclasses
import glob
import gzip
import hashlib
import io
import itertools
import lzma
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from anyformer.objectives.examples import RenamedExample
from anyformer.specs.field_types import Count, Natural, TwoOrMore
from anyformer.specs.messages import nearest, quote
from anyformer.specs.part import Part, Table

Example = Mapping[str, Any]

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
BROKEN = (OSError, EOFError, lzma.LZMAError, zlib.error)  # raised by damaged archives
LONGEST_LINE = 64 * 2**20  # characters; a line must fit into memory
BLOCK = 2**20  # bytes decoded at once
MAX_EXPANSION = 50  # maximum uncompressed size relative to the file; text and pictures expand 3 to 20 times
DETECTED = 64 * BLOCK  # bytes read to detect an encoding


class Row(NamedTuple):
    place: str  # "file:line"
    example: Example | None
    problem: str = ""  # why there is no example


class Source(Part, abstract=True):
    """Base class of data sources. `columns`: the objective's name of a column -> its name in the data. `required`: the
    objective's names of columns that must contain one value; if one is missing, empty or a list, the row is skipped."""

    columns: Mapping[str, str] = Table()
    required: tuple[str, ...] = ()

    def raw(self) -> Iterator[Row]:
        """Yield every row in order, with the data's column names."""
        raise NotImplementedError

    def digest(self) -> str:
        """Return a fingerprint of the content. If it changes, the data is prepared again."""
        raise NotImplementedError

    def parts(self) -> dict[str, Source]:
        """The sources of a mixture by name; empty for other sources."""
        return {}

    @property
    def whole(self) -> Source:
        """The source that this one selects a part of; itself if it does not select."""
        return self

    def is_counterpart(self, other: Source) -> bool:
        """Whether this and `other` select different parts of their sources by the same rule."""
        return False

    def rows(self, wanted: tuple[str, ...]) -> Iterator[Row]:
        """Yield every row with the `wanted` columns, under the objective's names.

        If the first readable row lacks a column that is not `required`, the description is wrong: ValueError. If a
        later row lacks it, only that row has a problem."""
        names = {name: self.columns.get(name, name) for name in (*wanted, *self.columns, *self.required)}
        optional = {names[name] for name in self.required}
        seen = False
        for place, example, problem in self.raw():
            if example is None:
                yield Row(place, None, problem)
                continue
            try:
                example = RenamedExample(
                    {**example, **{name: reach(example, column) for name, column in names.items()}}
                )
            except KeyError as error:
                missing = error.args[0]
                if not seen and missing not in optional:
                    hint = f" (or map {quote(missing)} to a column in data.*.columns)" if missing in wanted else ""
                    known = [" ".join(str(name).split()) for name in example]  # names in a damaged table may be long
                    raise ValueError(f"{place}: no column {quote(missing)}; {nearest(missing, known)}{hint}") from None
                yield Row(place, None, f"no column {quote(missing)}")
                continue
            example.columns = names
            problem = next(filter(None, (value_problem(example[name], names[name]) for name in self.required)), "")
            seen = True
            yield Row(place, None if problem else example, problem)


def value_problem(value: Any, column: str) -> str:
    """Return why a cell does not contain one value; "" if it does."""
    if isinstance(value, str):
        empty = not value.strip()
    elif isinstance(value, (list, tuple, Mapping)):
        if len(value):
            return f"column {column!r} contains a {'table' if isinstance(value, Mapping) else 'list'}, not one value"
        empty = True
    else:
        empty = value is None or (isinstance(value, float) and math.isnan(value))
    return f"column {column!r} is empty" if empty else ""


def reach(example: Example, column: str) -> Any:
    """Return the value of a column, which may be nested ("translation.de"); KeyError(column) if it is missing."""
    if column in example:
        return example[column]
    value: Any = example
    for step in column.split("."):
        if not isinstance(value, Mapping) or step not in value:
            raise KeyError(column)
        value = value[step]
    return value


class Files(Source, abstract=True):
    """A source made of files: `path` is a file, a folder, a pattern such as "data/*.txt", or several of them."""

    path: str | tuple[str, ...]

    def endings(self) -> tuple[str, ...]:
        """Return the suffixes of the files to read from a folder, without the suffix of a compression (.gz)."""
        raise NotImplementedError

    def files(self) -> list[Path]:
        """Return the files of each path, sorted by name so that the order does not depend on the file system."""
        paths = (self.path,) if isinstance(self.path, str) else self.path
        return [file for path in paths for file in find(path, self.endings())]

    def digest(self) -> str:
        return digest_of(self.files())


class Subset(Source, abstract=True):
    """Some rows of another source."""

    source: Source

    def check(self) -> None:
        if self.columns:
            raise ValueError(f"{type(self).__name__}: set columns on its source instead")

    def choose(self, rows: Iterator[Row]) -> Iterator[Row]:
        raise NotImplementedError

    def raw(self) -> Iterator[Row]:
        return self.choose(self.source.raw())

    def rows(self, wanted: tuple[str, ...]) -> Iterator[Row]:
        return self.choose(self.source.rows(wanted))

    def digest(self) -> str:
        return self.source.digest()


class Beside(Source):
    """Joins sources row by row: row i has the columns of row i of each source (images in one file, captions in
    another)."""

    sources: tuple[Source, ...]

    def check(self) -> None:
        if len(self.sources) < 2:
            raise ValueError("Beside.sources: give at least two sources")

    def raw(self) -> Iterator[Row]:
        for rows in itertools.zip_longest(*(source.rows(()) for source in self.sources)):
            if None in rows:
                ends = ", ".join(row.place for row in rows if row is not None)
                raise ValueError(f"{ends}: another of the sources has fewer rows")
            problem = next((row.problem for row in rows if row.example is None), "")
            merged = {name: value for row in rows for name, value in (row.example or {}).items()}
            yield Row(rows[0].place, None if problem else merged, problem)

    def digest(self) -> str:
        return "".join(source.digest() for source in self.sources)


class Numbers(Source):
    """{"number": first}, {"number": first + 1}, ...: for an objective that generates its own training data."""

    count: Count
    first: int = 0

    def raw(self) -> Iterator[Row]:
        return (Row(f"number {i}", {"number": i}) for i in range(self.first, self.first + self.count))

    def digest(self) -> str:
        return ""  # the description determines the rows


class Held(Subset):
    """Splits a source that has no validation split: of every `one_in` consecutive rows, one random row is held out. If
    `stratify` names the column of the classes, this applies to each class separately: a class of at least two rows is
    in both parts. If `group` names a column, rows with the same value stay together: of every `one_in` values, one is
    held out. `seed` belongs to the split, so that runs with different seeds hold out the same rows. If the train and
    valid sources of a run have different files, every row of both is used.

    `Data(train=Held(source=x, one_in=20), valid=Held(source=x, one_in=20, out=True))`"""

    one_in: TwoOrMore = 20
    out: bool = False
    seed: Natural = 0
    stratify: str | None = None
    group: str | None = None

    def check(self) -> None:
        super().check()
        if self.stratify is not None and self.group is not None:
            raise ValueError("Held: give stratify or group, not both")

    @property
    def whole(self) -> Source:
        return self.source

    def is_counterpart(self, other: Source) -> bool:
        return isinstance(other, Held) and other.replace(source=self.source) == self.replace(out=not self.out)

    def choose(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Split in one pass. Only one row per class is kept: the row that is held out if its group ends here."""
        if self.group is not None:
            yield from self._choose_groups(list(rows), self.group)  # reads all rows into memory
            return
        random = np.random.default_rng(self.seed)
        groups: dict[str, _Group] = {}
        for row in rows:
            drawn = random.random()  # one number per row, so that both parts agree
            if row.example is None:  # reported once, in the training part
                if not self.out:
                    yield row
                continue
            kind = "" if self.stratify is None else self._value(row, self.stratify, known=bool(groups))
            group = groups.setdefault(kind, _Group())
            group.size += 1
            replaced = drawn * group.size < 1  # reservoir sampling: every row of the group is equally likely
            rejected, group.row = (group.row, row) if replaced else (row, group.row)
            if rejected is not None and not self.out:
                yield rejected
            if group.size == self.one_in:
                if self.out and group.row is not None:
                    yield group.row
                groups[kind] = _Group(first=False)
        for group in groups.values():
            held = group.size >= 2 if group.first else 2 * group.size >= self.one_in  # rounded to the nearest integer
            if group.row is not None and held == self.out:
                yield group.row

    def _choose_groups(self, rows: list[Row], group: str) -> Iterator[Row]:
        """Split the first rows of all groups; the other rows follow them."""
        first: dict[str, Row] = {}
        values = [None if row.example is None else self._value(row, group, known=bool(first)) for row in rows]
        for value, row in zip(values, rows):
            if value is not None:
                first.setdefault(value, row)
        chosen = {row.place for row in self.replace(group=None).choose(iter(first.values()))}
        for value, row in zip(values, rows):
            if not self.out if value is None else first[value].place in chosen:
                yield row

    def _value(self, row: Row, column: str, known: bool) -> str:
        """Return the value of a row by which rows are split; `known`: an earlier row had one."""
        assert row.example is not None
        try:
            return str(reach(row.example, self.source.columns.get(column, column)))
        except KeyError as error:
            if known:
                return ""  # the objective reports this row
            use, missing = "stratify" if self.group is None else "group", error.args[0]
            known_names = nearest(missing, row.example)
            raise ValueError(f"{row.place}: no column {missing!r} to {use} by; {known_names}") from None


@dataclasses.dataclass
class _Group:
    """Consecutive rows of one class; one of them is held out."""

    size: int = 0
    row: Row | None = None  # held out unless a later row replaces it
    first: bool = True  # the first group of its class


class First(Subset):
    """The first `count` examples of a source, for a small version of a run. With `seed`, the first of a random order:
    a smaller count selects a subset of a larger one."""

    count: Count
    seed: Natural | None = None

    def choose(self, rows: Iterator[Row]) -> Iterator[Row]:
        good = 0
        if self.seed is not None:  # reads all rows into memory
            every = list(rows)
            rows = (every[i] for i in np.random.default_rng(self.seed).permutation(len(every)))
        for row in rows:
            yield row
            good += row.example is not None
            if good == self.count:
                return


class Where(Subset):
    """The examples whose number in `column` is `least` to `most` (inclusive), for data with a split column."""

    column: str
    least: float | None = None
    most: float | None = None

    def choose(self, rows: Iterator[Row]) -> Iterator[Row]:
        low, high = (-math.inf if self.least is None else self.least), (math.inf if self.most is None else self.most)
        for row in rows:
            if row.example is None:
                yield row
                continue
            try:
                value = reach(row.example, self.column)
                if low <= float(value) <= high:
                    yield row
            except KeyError:
                known = nearest(self.column, row.example)
                raise ValueError(f"{row.place}: no column {quote(self.column)}; {known}") from None
            except (TypeError, ValueError):
                yield Row(row.place, None, f"column {quote(self.column)} is not a number: {quote(value, 40)}")


def find(path: str, endings: tuple[str, ...] = ()) -> list[Path]:
    """Return the files of a path or pattern; ValueError if there are none."""
    place = Path(path).expanduser()
    if place.is_file():
        return [place]
    if place.is_dir():
        files = [file for file in place.rglob("*") if file.is_file() and plain_suffix(file) in endings]
        if not files:
            raise ValueError(f"{path}: no file ends in {' '.join(endings)}")
    else:
        files = [Path(name) for name in glob.glob(str(place), recursive=True) if Path(name).is_file()]
        if not files:
            near = nearest(place.name, (p.name for p in place.parent.iterdir())) if place.parent.is_dir() else ""
            raise ValueError(f"{path}: no such file or folder{near and '; '}{near}")
    return sorted(files)


def plain_suffix(file: Path) -> str:
    """ "x.csv.gz" -> ".csv" """
    return Path(file.stem).suffix.lower() if file.suffix in OPENERS else file.suffix.lower()


def open_bytes(file: Path) -> IO[bytes]:
    """Open a file for reading, uncompressed if its suffix is in OPENERS."""
    return OPENERS.get(file.suffix, open)(file, "rb")


def read_whole(file: Path) -> bytes:
    """Return the uncompressed content of a file; ValueError if it is larger than real data can be."""
    most = max(LONGEST_LINE, MAX_EXPANSION * file.stat().st_size)
    with open_bytes(file) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise ValueError(f"expands to more than {most:,} bytes, {MAX_EXPANSION} times its size")
    return content


class TextLine(NamedTuple):
    number: int  # from 1
    text: str | None  # without its line end
    problem: str = ""  # why there is no text


def lines(file: Path, encoding: str = "utf-8") -> Iterator[TextLine]:
    number = 0
    try:
        with open_bytes(file) as stream:
            for number, line in enumerate(text_lines(stream, encoding), 1):
                problem = TOO_LONG if line is None else encoding_problem(encoding) if UNDECODABLE in line else ""
                yield TextLine(number, None if line is None or problem else line.rstrip("\r\n"), problem)
    except BROKEN as error:
        raise ValueError(f"{file}, after line {number}: cannot be read ({error})") from None


# -- encodings

TOO_LONG = f"longer than {LONGEST_LINE:,} characters"
UNDECODABLE = "\udc80"  # replaces bytes that cannot be decoded; valid text never contains it
BOMS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
codecs.register_error("anyformer.mark", lambda error: (UNDECODABLE, error.end))  # type: ignore[attr-defined]


def text_lines(stream: IO[bytes], encoding: str = "utf-8", newline: str = "\n") -> Iterator[str | None]:
    """Yield each line with its line end, or None for a line longer than LONGEST_LINE, whose rest is skipped."""
    encoding = "utf-8-sig" if encoding == "utf-8" else encoding
    text = io.TextIOWrapper(stream, encoding, errors="anyformer.mark", newline=newline)
    while line := text.readline(LONGEST_LINE):
        if len(line) < LONGEST_LINE or line.endswith(("\n", "\r")):
            yield line
            continue
        yield None
        while len(line) == LONGEST_LINE and not line.endswith(("\n", "\r")):
            line = text.readline(LONGEST_LINE)


def known_encoding(name: str) -> str:
    """Return Python's name of a text encoding; ValueError if there is none."""
    with contextlib.suppress(LookupError, ValueError):
        codec = codecs.lookup(name)
        if codec._is_text_encoding:
            return codec.name
    usual = ("utf-8", "utf-16", "utf-32", "cp1252", "latin-1", "cp1250", "cp1251", "gb18030", "shift_jis", "big5")
    raise ValueError(f"no encoding {name!r}; {nearest(name, usual)}")


def encoding_problem(encoding: str) -> str:
    return f"not {encoding.upper() if encoding.startswith('utf') else encoding}"


def detect_encoding(file: Path) -> str:
    """Guess the encoding of a text file from its first DETECTED bytes: by its byte order mark; UTF-16 if many of the
    even or odd bytes at its start are zero; UTF-8 if it has at least as many valid non-ASCII characters as undecodable
    sequences; otherwise Windows' cp1252."""
    valid, invalid = 0, 0
    try:
        with open_bytes(file) as stream:
            raw = stream.read(BLOCK)
            for mark, name in BOMS.items():
                if raw.startswith(mark):
                    return name
            for name, bytes_ in (("utf-16-be", raw[:4096:2]), ("utf-16-le", raw[1:4096:2])):
                if bytes_.count(0) > 0.4 * len(bytes_):
                    return name
            if b"\0" in raw[:4096]:
                raise ValueError(f"{file}: not a text file; save it as UTF-8 text first")
            reader, seen = codecs.getincrementaldecoder("utf-8")("anyformer.mark"), 0
            while raw and seen < DETECTED:
                following = stream.read(BLOCK)
                seen += len(raw)
                text = reader.decode(raw, final=not following)
                marks = text.count(UNDECODABLE)
                valid += len(text) - len(text.encode("ascii", "ignore")) - marks
                invalid += marks
                raw = following
    except BROKEN as error:
        raise ValueError(f"{file}: cannot be read ({error})") from None
    return "utf-8" if valid >= invalid else "cp1252"


class NotText(ValueError):
    """Raised for a file that its encoding cannot decode; `line` is the first such line."""

    def __init__(self, line: int, encoding: str) -> None:
        super().__init__(encoding_problem(encoding))
        self.line = line


def read_text(file: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the text of a file in blocks; line ends are converted to "\\n"."""
    decoder = codecs.getincrementaldecoder("utf-8-sig" if encoding == "utf-8" else encoding)()
    reader, line = io.IncrementalNewlineDecoder(decoder, translate=True), 1
    try:
        with open_bytes(file) as stream:
            raw = b"\0"
            while raw:
                raw = stream.read(BLOCK)
                text = reader.decode(raw, final=not raw)
                line += text.count("\n")
                yield text
    except UnicodeDecodeError as error:
        raise NotText(line + error.object.count(b"\n", 0, error.start), encoding) from None
    except BROKEN as error:
        raise ValueError(f"{file}: cannot be read ({error})") from None


def digest_of(files: list[Path]) -> str:
    """Return a digest of the names and contents of files, independent of their folder."""
    total = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256")
        except OSError as error:
            raise ValueError(f"{file}: {error.strerror or error}") from None
        total.update(f"{file.name}\0{content.hexdigest()}\n".encode())
    return total.hexdigest()
