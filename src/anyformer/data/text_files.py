"""Text files: plain text, parallel text, CoNLL columns, and the documentation and library of the running Python."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Literal

from anyformer.data.source import (
    LONGEST_LINE,
    TOO_LONG,
    Files,
    NotText,
    Row,
    Source,
    TextLine,
    detect_encoding,
    digest_of,
    find,
    known_encoding,
    lines,
    read_text,
)
from anyformer.inputs.long import LongText
from anyformer.specs.messages import amount
from anyformer.specs.part import Table

LONG = 2**22  # characters; longer texts are read in parts instead of into memory


class TextFiles(Files):
    """Plain text: each file, paragraph (between empty lines) or line is one example, {"text": ...}.

    `start` and `stop` select a part of each file, as fractions of its lines (unit "line") or of its characters, rounded
    up to a line end (in the last line: to the end of a word). If two splits of a run select different parts of
    different files, both read all of their files."""

    unit: Literal["file", "paragraph", "line"] = "file"
    start: float = 0.0
    stop: float = 1.0
    encoding: str | None = "utf-8"  # None: detect it for each file

    def check(self) -> None:
        known_encoding(self.encoding or "utf-8")
        if not 0 <= self.start < self.stop <= 1:
            raise ValueError(f"TextFiles: 0 <= start < stop <= 1 must hold, not {self.start} and {self.stop}")

    def endings(self) -> tuple[str, ...]:
        return (".txt", ".md", ".rst", ".text")

    @property
    def whole(self) -> Source:
        return self.replace(start=0.0, stop=1.0)

    def is_counterpart(self, other: Source) -> bool:
        return isinstance(other, TextFiles) and (self.stop <= other.start or other.stop <= self.start)

    def raw(self) -> Iterator[Row]:
        for file in self.files():
            if self.unit == "line":
                yield from self._lines(file)
            else:
                yield from self._texts(file)

    def _lines(self, file: Path) -> Iterator[Row]:
        encoding = self.encoding or detect_encoding(file)
        numbered: Iterable[TextLine] = lines(file, encoding)
        if (self.start, self.stop) != (0, 1):
            total = sum(1 for _ in numbered)
            numbered = islice(lines(file, encoding), round(self.start * total), round(self.stop * total))
        for number, line, problem in numbered:
            if line is None:
                yield Row(f"{file}:{number}", None, problem)
            elif line.strip():
                yield Row(f"{file}:{number}", {"text": line})

    def _texts(self, file: Path) -> Iterator[Row]:
        read = partial(read_text, file, self.encoding or detect_encoding(file))
        try:
            total = sum(map(len, read()))
        except NotText as error:
            yield Row(f"{file}:{error.line}", None, str(error))
            return
        start, stop = (_line_end(read, share, total) for share in (self.start, self.stop))
        number = sum(part.count("\n") for part in _characters(read, 0, start)) + 1
        if self.unit == "file":
            if any(part.strip() for part in _characters(read, start, stop)):
                text = LongText(partial(_characters, read, start, stop))
                yield Row(f"{file}:{number}", {"text": text if stop - start > LONG else str(text)})
            return
        for paragraph, size in _paragraphs(_characters(read, start, stop)):
            if paragraph is None:
                yield Row(f"{file}:{number}", None, TOO_LONG)
            elif paragraph.strip():
                yield Row(f"{file}:{number}", {"text": paragraph.strip("\n")})
            number += size + 2


def _characters(read: Callable[[], Iterator[str]], start: int, stop: int) -> Iterator[str]:
    """Yield the characters [start, stop) of a text in parts."""
    seen = 0
    for part in read():
        if seen < stop and seen + len(part) > start:
            yield part[max(start - seen, 0) : stop - seen]
        seen += len(part)
        if seen >= stop:
            return


def _line_end(read: Callable[[], Iterator[str]], share: float, total: int) -> int:
    """Return the end of the line that contains character `share * total`; in the last line, the end of the word."""
    if share in (0, 1):
        return round(share * total)
    for end in "\n ":
        place = int(share * total)
        for part in _characters(read, place, total - 1):
            if end in part:
                return place + part.index(end) + 1
            place += len(part)
    return total


def _paragraphs(parts: Iterable[str]) -> Iterator[tuple[str | None, int]]:
    """Split text at empty lines; yield (paragraph, its number of line ends). Too long paragraphs are None."""
    waiting, dropped, skipped = "", False, 0
    for part in parts:
        *whole, waiting = (waiting + part).split("\n\n")
        for paragraph in whole:
            yield None if dropped else paragraph, paragraph.count("\n") + skipped
            dropped, skipped = False, 0
        if dropped or len(waiting) > LONGEST_LINE:  # keep the last character: it may begin an empty line
            dropped, skipped, waiting = True, skipped + waiting.count("\n", 0, -1), waiting[-1:]
    yield None if dropped else waiting, waiting.count("\n") + skipped


class ParallelText(Source):
    """Reads files line by line in parallel; `paths` is name -> file, {"source": ..., "target": ...} for translation."""

    paths: Mapping[str, str]

    def check(self) -> None:
        if len(self.paths) < 2:
            raise ValueError("ParallelText.paths: give at least two files, {'source': ..., 'target': ...}")

    def files(self) -> list[Path]:
        return [find(path)[0] for path in self.paths.values()]

    def raw(self) -> Iterator[Row]:
        files = self.files()
        for together in zip_longest(*map(lines, files)):
            if None in together:  # the lines may be misaligned long before this one
                number = next(line for line in together if line is not None).number
                raise ValueError(
                    f"{files[together.index(None)]}: ends before line {number}; all files need the same number of lines"
                )
            number = together[0].number
            for file, (_, text, problem) in zip(files, together):
                if not text or not text.strip():
                    yield Row(f"{file}:{number}", None, problem or "an empty line")
                    break
            else:
                yield Row(f"{files[0]}:{number}", {name: line.text for name, line in zip(self.paths, together)})

    def digest(self) -> str:
        return digest_of(self.files())


class Columns(Files):
    """CoNLL files: one word per line with its columns, and an empty line between sentences. Each sentence is one
    example of lists.

    `fields` maps names to columns: 0, 1, ... or -1, -2, ... from the end. Lines that begin with `comment` or -DOCSTART-
    are skipped. If the first column contains word numbers (`numbered`, CoNLL-U), lines for several words (1-2) and for
    omitted words (8.1) are skipped, too."""

    fields: Mapping[str, int] = Table({"words": 0, "tags": -1})
    comment: str | None = None
    numbered: bool = False
    encoding: str = "utf-8"

    def check(self) -> None:
        known_encoding(self.encoding)

    def endings(self) -> tuple[str, ...]:
        return (".conll", ".conllu", ".bio", ".txt")

    def raw(self) -> Iterator[Row]:
        for file in self.files():
            yield from self._sentences(file)

    def _sentences(self, file: Path) -> Iterator[Row]:
        words: list[list[str]] = []
        begin, problem = 1, ""
        for number, line, unread in chain(lines(file, self.encoding), [TextLine(0, "")]):
            if line is None:
                problem = problem or f"line {number} is {unread}"
            elif line.startswith("-DOCSTART-") or (self.comment is not None and line.startswith(self.comment)):
                continue
            elif line.strip():
                begin = begin if words or problem else number
                cells = line.split("\t") if "\t" in line else line.split()
                if self.numbered and not cells[0].isdigit():
                    continue
                try:
                    words.append([cells[column].strip() for column in self.fields.values()])
                except IndexError:
                    problem = problem or f"line {number} has {amount(len(cells), 'column')}"
            elif words or problem:
                columns = {name: [word[i] for word in words] for i, name in enumerate(self.fields)}
                yield Row(f"{file}:{begin}", None if problem else columns, problem)
                words, problem = [], ""


class PythonDocs(Source):
    """Text that comes with Python: the language's documentation (465,000 characters of English; one example per topic)
    and the source of the standard library (about 11 million characters; one example per file)."""

    documentation: bool = True
    library: bool = True

    def files(self) -> list[Path]:
        """Return the files of the standard library without its tests, which are large and repetitive."""
        excluded = {"test", "tests", "idle_test", "site-packages", "dist-packages", "pydoc_data", "__pycache__"}
        paths: list[Path] = []
        for folder, inner, names in os.walk(sysconfig.get_paths()["stdlib"]):
            inner[:] = set(inner) - excluded
            paths += [Path(folder, name) for name in names if name.endswith(".py")]
        return sorted(paths)

    def raw(self) -> Iterator[Row]:
        if self.documentation:
            from pydoc_data.topics import topics

            for name in sorted(topics):
                yield Row(f"pydoc_data.topics:{name}", {"text": topics[name]})
        for file in self.files() if self.library else ():
            try:
                text = file.read_text("utf-8")
            except (UnicodeDecodeError, OSError) as error:
                yield Row(f"{file}:1", None, f"cannot be read ({error})")
                continue
            if text.strip():
                yield Row(f"{file}:1", {"text": text})

    def digest(self) -> str:
        import pydoc_data.topics

        topics = [Path(pydoc_data.topics.__file__)] if self.documentation else []
        return digest_of(topics + (self.files() if self.library else []))
