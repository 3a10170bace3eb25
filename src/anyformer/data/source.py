"""What every source of data is: a Part that gives rows, and what can be said of its content.

A row is an example or a problem, and the place it comes from ("train.csv:17"), so that what cannot be read is reported
and counted, and never lost in silence.
"""

from __future__ import annotations

import bz2
import codecs
import glob
import gzip
import hashlib
import itertools
import lzma
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from anyformer.part import Part, Table, nearest
from anyformer.ranges import at_least

Example = Mapping[str, Any]

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
BROKEN = (OSError, EOFError, lzma.LZMAError, zlib.error)  # what a damaged archive raises
LONGEST_LINE = 64 * 2**20  # bytes: a line is held whole
BLOCK = 2**20  # bytes that are decoded at once


class Row(NamedTuple):
    place: str  # "file:line"
    example: Example | None
    problem: str = ""  # why there is no example


class Source(Part):
    """Where examples come from. `columns` renames: what the objective asks for -> what the data calls it."""

    columns: Mapping[str, str] = Table()

    def raw(self) -> Iterator[Row]:
        """Every row in order, by the names of the data."""
        raise NotImplementedError

    def digest(self) -> str:
        """A fingerprint of the content, so that what was made of it is made again when it changes."""
        raise NotImplementedError

    def parts(self) -> dict[str, Source]:
        """What it is made of, by name, where each part is gone through on its own; nothing but in a mixture."""
        return {}

    def rows(self, wanted: tuple[str, ...]) -> Iterator[Row]:
        """Every row with the columns that are `wanted`, by the names of the objective.

        A column that the first good row lacks is a mistake of whoever described the data; in a later row it is a
        problem of the row."""
        names = {name: self.columns.get(name, name) for name in (*wanted, *self.columns)}
        seen = False
        for place, example, problem in self.raw():
            if example is None:
                yield Row(place, None, problem)
                continue
            try:
                example = {**example, **{name: reach(example, column) for name, column in names.items()}}
            except KeyError as error:
                lacks = error.args[0]
                if not seen:
                    hint = f" (data.*.columns says what is meant by {lacks!r})" if lacks in wanted else ""
                    known = [" ".join(str(name).split()) for name in example]  # a damaged table has anything there
                    raise ValueError(f"{place}: no column {lacks!r}; {nearest(lacks, known)}{hint}") from None
                yield Row(place, None, f"no column {lacks!r}")
                continue
            seen = True
            yield Row(place, example)


def reach(example: Example, column: str) -> Any:
    """The value of a column, or inside one: "translation.de"; KeyError(column) where there is none."""
    if column in example:
        return example[column]
    value: Any = example
    for step in column.split("."):
        if not isinstance(value, Mapping) or step not in value:
            raise KeyError(column)
        value = value[step]
    return value


class Files(Source):
    """A source made of files: `path` is a file, a folder, a pattern such as "data/*.txt", or several of them."""

    path: str | tuple[str, ...]

    def endings(self) -> tuple[str, ...]:
        """Of the files that are taken from a folder, without a compression's own."""
        raise NotImplementedError

    def files(self) -> list[Path]:
        """In the order of their names, which does not depend on the file system."""
        paths = (self.path,) if isinstance(self.path, str) else self.path
        return [file for path in paths for file in find(path, self.endings())]

    def digest(self) -> str:
        return digest_of(self.files())


class Subset(Source):
    """Some rows of another source."""

    source: Source

    def check(self) -> None:
        if self.columns:
            raise ValueError(f"{type(self).__name__}: columns belong to the source in it")

    def choose(self, rows: Iterator[Row]) -> Iterator[Row]:
        raise NotImplementedError

    def raw(self) -> Iterator[Row]:
        return self.choose(self.source.raw())

    def rows(self, wanted: tuple[str, ...]) -> Iterator[Row]:
        return self.choose(self.source.rows(wanted))

    def digest(self) -> str:
        return self.source.digest()


class Beside(Source):
    """Rows of several sources, side by side: row i has the columns of row i of each (pictures in one file and what is
    said of them in another)."""

    sources: tuple[Source, ...]

    def check(self) -> None:
        if len(self.sources) < 2:
            raise ValueError("Beside.sources: two or more")

    def raw(self) -> Iterator[Row]:
        for rows in itertools.zip_longest(*(source.rows(()) for source in self.sources)):
            if None in rows:
                ends = ", ".join(row.place for row in rows if row is not None)
                raise ValueError(f"{ends}: the other source has no row beside this one")
            problem = next((row.problem for row in rows if row.example is None), "")
            merged = {name: value for row in rows for name, value in (row.example or {}).items()}
            yield Row(rows[0].place, None if problem else merged, problem)

    def digest(self) -> str:
        return "".join(source.digest() for source in self.sources)


class Numbers(Source):
    """{"number": first}, {"number": first + 1}, ...: for an objective that draws what is learnt from itself."""

    count: int
    first: int = 0

    def check(self) -> None:
        at_least(self, 1, "count")

    def raw(self) -> Iterator[Row]:
        return (Row(f"number {i}", {"number": i}) for i in range(self.first, self.first + self.count))

    def digest(self) -> str:
        return ""  # all that there is stands in the description


class Held(Subset):
    """One part of a source where no split is given: the examples 0, n, 2n, ... are held out, the rest is to learn from.

    `Data(train=Held(source=x, one_in=20), valid=Held(source=x, one_in=20, out=True))`"""

    one_in: int = 20
    out: bool = False

    def check(self) -> None:
        super().check()
        at_least(self, 2, "one_in")

    def choose(self, rows: Iterator[Row]) -> Iterator[Row]:
        return (row for i, row in enumerate(rows) if (i % self.one_in == 0) == self.out)


class First(Subset):
    """The first so many examples of a source: a small form of a large run. With `seed` they are the first of a drawn
    order, so that of two counts the smaller is part of the larger."""

    count: int
    seed: int | None = None

    def check(self) -> None:
        super().check()
        at_least(self, 1, "count")
        at_least(self, 0, "seed")

    def choose(self, rows: Iterator[Row]) -> Iterator[Row]:
        good = 0
        if self.seed is not None:  # all are held at once
            held = list(rows)
            rows = (held[i] for i in np.random.default_rng(self.seed).permutation(len(held)))
        for row in rows:
            yield row
            good += row.example is not None
            if good == self.count:
                return


class Where(Subset):
    """The examples whose number in `column` is from `least` to `most`, both included: a split that the data states."""

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
                raise ValueError(f"{row.place}: no column {self.column!r}; {known}") from None
            except (TypeError, ValueError):
                yield Row(row.place, None, f"column {self.column!r} is no number: {value!r:.40}")


def find(path: str, endings: tuple[str, ...] = ()) -> list[Path]:
    """The files that a path or pattern means; ValueError where there are none."""
    place = Path(path).expanduser()
    if place.is_file():
        return [place]
    if place.is_dir():
        found = [file for file in place.rglob("*") if file.is_file() and plain_suffix(file) in endings]
        if not found:
            raise ValueError(f"{path}: no file here that ends in {' '.join(endings)}")
    else:
        found = [Path(name) for name in glob.glob(str(place), recursive=True) if Path(name).is_file()]
        if not found:
            near = nearest(place.name, (p.name for p in place.parent.iterdir())) if place.parent.is_dir() else ""
            raise ValueError(f"{path}: no such file or folder{near and '; '}{near}")
    return sorted(found)


def plain_suffix(file: Path) -> str:
    """"x.csv.gz" -> ".csv" """
    return Path(file.stem).suffix.lower() if file.suffix in OPENERS else file.suffix.lower()


def open_bytes(file: Path) -> IO[bytes]:
    """The file's content, whatever it is compressed with."""
    return OPENERS.get(file.suffix, open)(file, "rb")


class Line(NamedTuple):
    number: int  # from 1
    text: str | None  # without its end
    problem: str = ""  # why there is none


def lines(file: Path) -> Iterator[Line]:
    number = 0
    try:
        with open_bytes(file) as stream:
            for number, raw in enumerate(raw_lines(stream), 1):
                if raw is None:
                    yield Line(number, None, TOO_LONG)
                    continue
                try:
                    yield Line(number, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n"))
                except UnicodeDecodeError:
                    yield Line(number, None, "not UTF-8")
    except BROKEN as error:
        raise ValueError(f"{file}, after line {number}: cannot be read ({error})") from None


TOO_LONG = f"longer than {LONGEST_LINE:,} bytes"


def raw_lines(stream: IO[bytes]) -> Iterator[bytes | None]:
    """Each line with its end; None for one that is too long to hold."""
    while raw := stream.readline(LONGEST_LINE):
        rest = raw
        while len(rest) == LONGEST_LINE and not rest.endswith(b"\n"):
            rest, raw = stream.readline(LONGEST_LINE), b""
        yield raw or None


class NotText(ValueError):
    """A file that is not UTF-8; `line` is the first that is not."""

    def __init__(self, line: int) -> None:
        super().__init__("not UTF-8")
        self.line = line


def decoded(file: Path) -> Iterator[str]:
    """The text of a file, in parts cut anywhere."""
    reader, line = codecs.getincrementaldecoder("utf-8-sig")(), 1
    try:
        with open_bytes(file) as stream:
            raw = b"\0"
            while raw:
                raw = stream.read(BLOCK)
                text = reader.decode(raw, final=not raw)
                line += text.count("\n")
                yield text
    except UnicodeDecodeError as error:
        raise NotText(line + error.object.count(b"\n", 0, error.start)) from None
    except BROKEN as error:
        raise ValueError(f"{file}: cannot be read ({error})") from None


def digest_of(files: list[Path]) -> str:
    """Of names and contents; the folder they lie in may move."""
    total = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256")
        except OSError as error:
            raise ValueError(f"{file}: {error.strerror or error}") from None
        total.update(f"{file.name}\0{content.hexdigest()}\n".encode())
    return total.hexdigest()
