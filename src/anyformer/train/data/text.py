"""Text files: plain, in lines that belong together, and the running Python's own documentation."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, zip_longest
from pathlib import Path
from typing import Literal

from anyformer.spec import Table
from anyformer.train.data.source import Files, Row, Source, digest_of, find, lines, open_bytes


class TextFiles(Files):
    """Plain text: each file, paragraph (between empty lines) or line is one example, {"text": ...}.

    `start` and `stop` take a part of each file: shares of its lines, or of its characters up to where a line ends."""

    unit: Literal["file", "paragraph", "line"] = "file"
    start: float = 0.0
    stop: float = 1.0

    def check(self) -> None:
        if not 0 <= self.start < self.stop <= 1:
            raise ValueError(f"TextFiles: 0 <= start < stop <= 1 must hold, not {self.start} and {self.stop}")

    def endings(self) -> tuple[str, ...]:
        return (".txt", ".md", ".rst", ".text")

    def raw(self) -> Iterator[Row]:
        for file in self.files():
            if self.unit == "line":
                yield from self._lines(file)
            else:
                yield from self._texts(file)

    def _lines(self, file: Path) -> Iterator[Row]:
        numbered: Iterable[tuple[int, str | None]] = lines(file)
        if (self.start, self.stop) != (0, 1):
            every = list(numbered)
            numbered = every[round(self.start * len(every)) : round(self.stop * len(every))]
        for number, line in numbered:
            if line is None:
                yield Row(f"{file}:{number}", None, "not UTF-8")
            elif line.strip():  # an empty line is no example
                yield Row(f"{file}:{number}", {"text": line})

    def _texts(self, file: Path) -> Iterator[Row]:
        try:
            with open_bytes(file) as stream:
                text = stream.read().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            yield Row(f"{file}:{line}", None, "not UTF-8")
            return
        except (OSError, EOFError) as error:
            raise ValueError(f"{file}: cannot be read ({error})") from None
        ends = [_line_end(text, share) for share in (self.start, self.stop)]
        number = text.count("\n", 0, ends[0]) + 1
        text = text[ends[0] : ends[1]]
        if self.unit == "file":
            if text.strip():
                yield Row(f"{file}:{number}", {"text": text})
            return
        for paragraph in text.split("\n\n"):
            if paragraph.strip():
                yield Row(f"{file}:{number}", {"text": paragraph.strip("\n")})
            number += paragraph.count("\n") + 2


def _line_end(text: str, share: float) -> int:
    """Where the line ends that this share of the characters falls into."""
    if share in (0, 1):
        return round(share * len(text))
    return text.find("\n", int(share * len(text))) + 1 or len(text)


class ParallelText(Source):
    """Files whose lines belong together, as {"source": ..., "target": ...} of a translation: name -> file."""

    paths: Mapping[str, str]

    def check(self) -> None:
        if len(self.paths) < 2:
            raise ValueError("ParallelText: paths names two files at least, {'source': ..., 'target': ...}")

    def files(self) -> list[Path]:
        return [find(path)[0] for path in self.paths.values()]

    def raw(self) -> Iterator[Row]:
        files = self.files()
        for together in zip_longest(*map(lines, files)):
            if None in together:  # to go on would pair what does not belong together
                number = next(line for line in together if line is not None)[0]
                raise ValueError(f"{files[together.index(None)]}: ends before line {number}, and others do not")
            number, texts = together[0][0], [text for _, text in together]
            for file, text in zip(files, texts):
                if not text or not text.strip():
                    yield Row(f"{file}:{number}", None, "not UTF-8" if text is None else "an empty line")
                    break
            else:
                yield Row(f"{files[0]}:{number}", dict(zip(self.paths, texts)))

    def digest(self) -> str:
        return digest_of(self.files())


class Columns(Files):
    """A word a line with its columns, an empty line between sentences (CoNLL): each sentence is one example, of lists.

    `fields` says which column is what, from 0, or from -1 backwards; lines with `comment` before are passed over."""

    fields: Mapping[str, int] = Table({"words": 0, "tags": -1})
    comment: str | None = None

    def endings(self) -> tuple[str, ...]:
        return (".conll", ".conllu", ".bio", ".txt")

    def raw(self) -> Iterator[Row]:
        for file in self.files():
            yield from self._sentences(file)

    def _sentences(self, file: Path) -> Iterator[Row]:
        words: list[list[str]] = []
        begin, problem = 1, ""
        for number, line in chain(lines(file), [(0, "")]):
            if line is None:
                problem = problem or f"line {number} is not UTF-8"
            elif self.comment is not None and line.startswith(self.comment):
                continue
            elif line.strip():
                begin = begin if words or problem else number
                cells = line.split("\t") if "\t" in line else line.split()
                try:
                    words.append([cells[place].strip() for place in self.fields.values()])
                except IndexError:
                    problem = problem or f"line {number} has {len(cells)} columns"
            elif words or problem:
                columns = {name: [word[i] for word in words] for i, name in enumerate(self.fields)}
                yield Row(f"{file}:{begin}", None if problem else columns, problem)
                words, problem = [], ""


class PythonDocs(Source):
    """Text that every machine with Python has: the language's documentation by topic (465,000 characters of English)
    and the source of the standard library (some 11 million), each topic and file one example."""

    documentation: bool = True
    library: bool = True

    def files(self) -> list[Path]:
        """Of the library without its tests, which are much and repeat themselves."""
        left_out = {"test", "tests", "idle_test", "site-packages", "dist-packages", "pydoc_data", "__pycache__"}
        found: list[Path] = []
        for folder, inner, names in os.walk(sysconfig.get_paths()["stdlib"]):
            inner[:] = set(inner) - left_out
            found += [Path(folder, name) for name in names if name.endswith(".py")]
        return sorted(found)

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
