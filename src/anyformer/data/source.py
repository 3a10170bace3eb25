"""The base classes of data sources: Parts that give rows and a fingerprint of their content.

A row is an example or a problem, with the place it comes from ("train.csv:17"), so that unreadable rows are reported
and counted.
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
from anyformer.specs.checks import at_least
from anyformer.specs.messages import nearest, quote
from anyformer.specs.part import Part, Table

Example = Mapping[str, Any]

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
BROKEN = (OSError, EOFError, lzma.LZMAError, zlib.error)  # what a damaged archive raises
LONGEST_LINE = 64 * 2**20  # characters: a line is held whole
BLOCK = 2**20  # bytes that are decoded at once
MAX_EXPANSION = 50  # times its size, of an archive that is read whole; text and pictures expand 3 to 20 times
DETECTED = 64 * BLOCK  # bytes that decide about a file's encoding


class Row(NamedTuple):
    place: str  # "file:line"
    example: Example | None
    problem: str = ""  # why there is no example


class Source(Part):
    """Where examples come from. `columns` renames: what the objective asks for -> what the data calls it. `required`
    columns, by the objective's names, must hold one value: a row where one is missing, empty or a list is skipped."""

    columns: Mapping[str, str] = Table()
    required: tuple[str, ...] = ()

    def raw(self) -> Iterator[Row]:
        """Every row in order, by the names of the data."""
        raise NotImplementedError

    def digest(self) -> str:
        """A fingerprint of the content, so that what was made of it is made again when it changes."""
        raise NotImplementedError

    def parts(self) -> dict[str, Source]:
        """The sources of a mixture by name; empty for other sources."""
        return {}

    @property
    def whole(self) -> Source:
        """The source that this one is a part of; itself if it is not a part."""
        return self

    def is_counterpart(self, other: Source) -> bool:
        """Whether this and `other` divide their sources in the same way and have different parts."""
        return False

    def rows(self, wanted: tuple[str, ...]) -> Iterator[Row]:
        """Every row with the columns that are `wanted`, by the names of the objective.

        A column that the first good row lacks is an error in the description, unless it is `required`; in a later row
        it is a problem of the row."""
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
                lacks = error.args[0]
                if not seen and lacks not in optional:
                    hint = f" (data.*.columns says what is meant by {quote(lacks)})" if lacks in wanted else ""
                    known = [" ".join(str(name).split()) for name in example]  # a damaged table has anything there
                    raise ValueError(f"{place}: no column {quote(lacks)}; {nearest(lacks, known)}{hint}") from None
                yield Row(place, None, f"no column {quote(lacks)}")
                continue
            example.columns = names
            problem = next(filter(None, (value_problem(example[name], names[name]) for name in self.required)), "")
            seen = True
            yield Row(place, None if problem else example, problem)


def value_problem(value: Any, column: str) -> str:
    """Why a cell does not hold one value; "" where it does."""
    if isinstance(value, str):
        empty = not value.strip()
    elif isinstance(value, (list, tuple, Mapping)):
        if len(value):
            return f"column {column!r} holds a {'table' if isinstance(value, Mapping) else 'list'}, not one value"
        empty = True
    else:
        empty = value is None or (isinstance(value, float) and math.isnan(value))
    return f"column {column!r} is empty" if empty else ""


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
                raise ValueError(f"{ends}: the other source has fewer rows")
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
    """One part of a source where no split is given: of every `one_in` rows in a row one is held out, drawn with `seed`.
    With `stratify`, the column of the classes, that holds for the rows of each class: a class of two rows or more is in
    both parts. The seed is the split's own, so that runs with other seeds are compared on the same rows. If the two
    splits of a run have different files, both are read whole.

    `Data(train=Held(source=x, one_in=20), valid=Held(source=x, one_in=20, out=True))`"""

    one_in: int = 20
    out: bool = False
    seed: int = 0
    stratify: str | None = None

    def check(self) -> None:
        super().check()
        at_least(self, 2, "one_in")
        at_least(self, 0, "seed")

    @property
    def whole(self) -> Source:
        return self.source

    def is_counterpart(self, other: Source) -> bool:
        return isinstance(other, Held) and other.replace(source=self.source) == self.replace(out=not self.out)

    def choose(self, rows: Iterator[Row]) -> Iterator[Row]:
        """In one pass: of each class only the row is kept waiting that would be held out if the group ended here."""
        random = np.random.default_rng(self.seed)
        groups: dict[str, _Group] = {}
        for row in rows:
            drawn = random.random()  # one number a row, readable or not, in whichever part
            if row.example is None:  # reported once, with what is learnt from
                if not self.out:
                    yield row
                continue
            kind = self._class(row, known=bool(groups))
            group = groups.setdefault(kind, _Group())
            group.size += 1
            replaced = drawn * group.size < 1  # reservoir sampling: each row of the group is as likely as the others
            rejected, group.row = (group.row, row) if replaced else (row, group.row)
            if rejected is not None and not self.out:
                yield rejected
            if group.size == self.one_in:
                if self.out and group.row is not None:
                    yield group.row
                groups[kind] = _Group(first=False)
        for group in groups.values():
            held = group.size >= 2 if group.first else 2 * group.size >= self.one_in  # to the nearest whole number
            if group.row is not None and held == self.out:
                yield group.row

    def _class(self, row: Row, known: bool) -> str:
        """Of a row; `known` where another row has had one."""
        if self.stratify is None or row.example is None:
            return ""
        try:
            return str(reach(row.example, self.source.columns.get(self.stratify, self.stratify)))
        except KeyError as error:
            if known:
                return ""  # a problem of this row, which its objective reports
            column, place = error.args[0], row.place
            raise ValueError(f"{place}: no column {column!r} to stratify by; {nearest(column, row.example)}") from None


@dataclasses.dataclass
class _Group:
    """Consecutive rows of one class; one of them is held out."""

    size: int = 0
    row: Row | None = None  # the one that is held out if no other is drawn
    first: bool = True  # of its class


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
                raise ValueError(f"{row.place}: no column {quote(self.column)}; {known}") from None
            except (TypeError, ValueError):
                yield Row(row.place, None, f"column {quote(self.column)} is not a number: {quote(value, 40)}")


def find(path: str, endings: tuple[str, ...] = ()) -> list[Path]:
    """The files that a path or pattern means; ValueError where there are none."""
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
    """The file's content, whatever it is compressed with."""
    return OPENERS.get(file.suffix, open)(file, "rb")


def read_whole(file: Path) -> bytes:
    """The content of a file; ValueError if it expands to far more than data does."""
    most = max(LONGEST_LINE, MAX_EXPANSION * file.stat().st_size)
    with open_bytes(file) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise ValueError(f"expands to more than {most:,} bytes, {MAX_EXPANSION} times its size")
    return content


class TextLine(NamedTuple):
    number: int  # from 1
    text: str | None  # without its end
    problem: str = ""  # why there is none


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
UNDECODABLE = "\udc80"  # stands for bytes that are not text; no encoding gives it
BOMS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
codecs.register_error("anyformer.mark", lambda error: (UNDECODABLE, error.end))  # type: ignore[attr-defined]


def text_lines(stream: IO[bytes], encoding: str = "utf-8", newline: str = "\n") -> Iterator[str | None]:
    """Each line with its end; None for one that is too long to hold, whose rest is read only if more lines are."""
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
    """The usual name of a text encoding; ValueError where Python knows none of this name."""
    with contextlib.suppress(LookupError, ValueError):
        codec = codecs.lookup(name)
        if codec._is_text_encoding:
            return codec.name
    usual = ("utf-8", "utf-16", "utf-32", "cp1252", "latin-1", "cp1250", "cp1251", "gb18030", "shift_jis", "big5")
    raise ValueError(f"no encoding {name!r}; {nearest(name, usual)}")


def encoding_problem(encoding: str) -> str:
    return f"not {encoding.upper() if encoding.startswith('utf') else encoding}"


def detect_encoding(file: Path) -> str:
    """The encoding of a text file, by its first DETECTED bytes: its byte order mark; UTF-16 if every other byte of its
    start is zero; UTF-8 if it is that, or is that but for fewer characters than it has beyond ASCII; otherwise Windows'
    cp1252."""
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
                raise ValueError(f"{file}: not a text file; save it as text, UTF-8, first")
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
    """A file that is not in its encoding; `line` is the first that is not."""

    def __init__(self, line: int, encoding: str) -> None:
        super().__init__(encoding_problem(encoding))
        self.line = line


def read_text(file: Path, encoding: str = "utf-8") -> Iterator[str]:
    """The text of a file, in parts cut anywhere; its lines end in "\\n" only."""
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
