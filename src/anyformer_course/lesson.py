"""Read a lesson: `lessons/N.md` -> Lesson, with one Stop per `## ` heading.

A stop has exactly these pieces, in this order: `Slides:`, the idea, a Python block (the demonstration), `See:`, `Try:`
and a second Python block (the change). The last heading may be `## Not shown`, a list of slides with reasons.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anyformer.specs.messages import nearest, quote
from anyformer_course.shown import Shown

FOLDER = Path(__file__).with_name("lessons")
MAX_SENTENCES = 3  # of an idea
FORM = 'Slides:, the idea, a ```python block, "See:", "Try:", a ```python block'


@dataclasses.dataclass(frozen=True)
class Block:
    """Python code of a lesson. Its last statement is an expression, whose value is a Shown."""

    code: str
    path: Path
    line: int  # of the file, where the code begins

    @property
    def where(self) -> str:
        return f"{self.path.name}:{self.line}"

    def run(self) -> Shown:
        """Execute the code with `show`, `Shown`, `Table`, `af` and `torch`; return the value of its last expression."""
        import anyformer
        import anyformer_course

        names: dict[str, Any] = {"af": anyformer, "__name__": "lesson"}
        names |= {name: getattr(anyformer_course, name) for name in anyformer_course.__all__}
        tree = ast.increment_lineno(ast.parse(self.code), self.line - 1)
        if any(isinstance(node, ast.Name) and node.id == "torch" for node in ast.walk(tree)):
            import torch  # 2 s: only if the code uses it

            names["torch"] = torch
            torch.manual_seed(0)
        *statements, last = tree.body
        exec(compile(ast.Module(statements, []), str(self.path), "exec"), names)
        value = eval(compile(ast.Expression(last.value), str(self.path), "eval"), names)  # type: ignore[attr-defined]
        if not isinstance(value, Shown):
            raise ValueError(f"{self.where}: the last expression gives {type(value).__name__}, not a Shown")
        return value


@dataclasses.dataclass(frozen=True)
class Stop:
    """One or several slides: the idea, a demonstration, what you should see, and one change to try."""

    lesson: int
    number: int  # from 1
    title: str
    line: int
    slides: tuple[str, ...]
    idea: str
    demonstration: Block
    see: str
    change: str  # what the second block changes
    changed: Block

    @property
    def slug(self) -> str:
        return slug(self.title)

    @property
    def name(self) -> str:
        return f"{self.lesson}.{self.number}"


@dataclasses.dataclass(frozen=True)
class NotShown:
    """Slides without a stop, and the reason."""

    slides: tuple[str, ...]
    reason: str
    line: int


@dataclasses.dataclass(frozen=True)
class Lesson:
    number: int
    title: str
    introduction: str
    stops: tuple[Stop, ...]
    not_shown: tuple[NotShown, ...]
    path: Path

    def stop(self, name: str) -> Stop:
        """Find a stop by number ("3") or by title in lower case with dashes ("attention-by-hand")."""
        for stop in self.stops:
            if name in (str(stop.number), stop.slug):
                return stop
        if name.isdecimal():
            raise ValueError(f"lesson {self.number} has stops 1 to {len(self.stops)}, not {name}")
        slugs = [stop.slug for stop in self.stops]
        raise ValueError(f"lesson {self.number} has no stop {quote(name)}; {nearest(name, slugs)}")


def slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def numbers(folder: Path | None = None) -> list[int]:
    return sorted(int(path.stem) for path in (folder or FOLDER).glob("*.md") if path.stem.isdecimal())


def load(number: int, folder: Path | None = None) -> Lesson:
    if number not in (available := numbers(folder)):
        raise ValueError(f"there is no lesson {number}; lessons: {', '.join(map(str, available)) or 'none yet'}")
    return read((folder or FOLDER) / f"{number}.md")


def find(name: str, folder: Path | None = None) -> tuple[Lesson, Stop | None]:
    """Return the lesson of "2", or the lesson and the stop of "2.3" and "2.attention-by-hand"."""
    number, dot, stop = name.partition(".")
    if not number.isdecimal() or (dot and not stop):
        raise ValueError(f"{quote(name)} is not a lesson or a stop; write 2, 2.3 or 2.attention-by-hand")
    lesson = load(int(number), folder)
    return lesson, lesson.stop(stop) if stop else None


# A piece of a lesson: its kind ("#", "##", "python" or "text"), its text and its first line.
Piece = tuple[str, str, int]


def read(path: Path) -> Lesson:
    """Parse a lesson. A mistake in its form is a ValueError that names the file and the line."""
    if not path.stem.isdecimal():
        raise ValueError(f"{path.name}: a lesson is called N.md, with the number of the lecture")
    pieces = list(split(path))
    if not pieces or pieces[0][0] != "#":
        raise wrong(path, 1, 'a lesson begins with "# Lecture N. Title"')
    number, heading = int(path.stem), re.fullmatch(r"Lecture (\d+)\. (.+)", pieces[0][1])
    if not heading or int(heading[1]) != number:
        raise wrong(path, 1, f'the title must be "# Lecture {number}. Title", got "# {pieces[0][1]}"')
    starts = [i for i, (kind, _, _) in enumerate(pieces) if kind == "##"]
    introduction = pieces[1 : starts[0] if starts else None]
    if not introduction:
        raise wrong(path, pieces[0][2], "a lesson needs an introduction after its title")
    for kind, _, line in pieces[1:]:
        if kind == "#":
            raise wrong(path, line, 'a lesson has one "# " heading; stops begin with "## "')
    for kind, _, line in introduction:
        if kind != "text":
            raise wrong(path, line, "the introduction has text only")
    stops: list[Stop] = []
    not_shown: tuple[NotShown, ...] = ()
    for start, end in zip(starts, [*starts[1:], None]):
        _, title, line = pieces[start]
        body = pieces[start + 1 : end]
        if title == "Not shown":
            if end is not None:
                raise wrong(path, pieces[end][2], '"## Not shown" must be the last heading')
            not_shown = tuple(read_not_shown(path, line, body))
            continue
        stop = read_stop(path, number, len(stops) + 1, title, line, body)
        for other in stops:
            if other.slug == stop.slug:
                raise wrong(path, line, f'the stop "{title}" has the title of line {other.line}')
        stops.append(stop)
    if not stops:
        raise wrong(path, 1, "a lesson needs at least one stop")
    text = "\n\n".join(text for _, text, _ in introduction)
    return Lesson(number, heading[2], text, tuple(stops), not_shown, path)


def split(path: Path) -> Iterator[Piece]:
    """Yield the headings, paragraphs and Python blocks of a file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    i = 0
    while i < len(lines):
        line, start = lines[i], i + 1
        if not line.strip():
            i += 1
        elif line.startswith("```"):
            if line.strip() != "```python":
                raise wrong(path, start, f"a block begins with ```python, got {line.strip()}")
            end = next((j for j in range(start, len(lines)) if lines[j].startswith("```")), None)
            if end is None:
                raise wrong(path, start, "the block has no closing ```")
            yield "python", "\n".join(lines[start:end]), start + 1
            i = end + 1
        elif heading := re.match(r"(#+) (.+)", line):
            if len(heading[1]) > 2:
                raise wrong(path, start, 'only "# " and "## " are headings of a lesson')
            yield heading[1], heading[2].strip(), start
            i += 1
        else:
            while i < len(lines) and lines[i].strip() and not re.match(r"```|#+ ", lines[i]):
                i += 1
            yield "text", "\n".join(lines[start - 1 : i]), start


def read_stop(path: Path, lesson: int, number: int, title: str, line: int, body: list[Piece]) -> Stop:
    expected = (
        ("Slides", "text"), ("idea", "text"), ("demonstration", "python"), ("See", "text"), ("Try", "text"),
        ("change", "python"),
    )  # fmt: skip
    labels = ("Slides", "See", "Try")
    for (name, kind), piece in zip(expected, body):
        found = next((label for label in labels if piece[0] == "text" and piece[1].startswith(f"{label}:")), None)
        if piece[0] != kind or found != (name if name in labels else None):
            start = "a ```python block" if piece[0] == "python" else f'"{piece[1][:30]}"'
            what = f"{name}:" if name in labels else f"the {name}"
            raise wrong(path, piece[2], f'stop "{title}": expected {what}, got {start}; the form is {FORM}')
    if len(body) < len(expected):
        name = expected[len(body)][0]
        last = body[-1][2] if body else line
        raise wrong(path, last, f'stop "{title}" ends before {f"{name}:" if name in labels else f"the {name}"}')
    if len(body) > len(expected):
        raise wrong(path, body[6][2], f'stop "{title}" goes on after the change; the form is {FORM}')
    slides, idea, demonstration, see, change, changed = body
    if count_sentences(idea[1]) > MAX_SENTENCES:
        message = f"the idea has {count_sentences(idea[1])} sentences; write two, at most {MAX_SENTENCES}"
        raise wrong(path, idea[2], message)
    blocks = [read_block(path, piece) for piece in (demonstration, changed)]
    if ast.dump(ast.parse(blocks[0].code)) == ast.dump(ast.parse(blocks[1].code)):
        raise wrong(path, changed[2], f'the change of "{title}" is the same code as the demonstration')
    texts = [unlabel(path, piece) for piece in (see, change)]
    titles = read_titles(path, slides[2], unlabel(path, slides))
    return Stop(lesson, number, title, line, titles, join(idea[1]), blocks[0], texts[0], texts[1], blocks[1])


def read_block(path: Path, piece: Piece) -> Block:
    _, code, line = piece
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        raise wrong(path, line - 1 + (error.lineno or 1), f"the Python block has a mistake: {error.msg}") from None
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        raise wrong(path, line, "the last line of a block must be an expression that gives a Shown")
    return Block(code, path, line)


def read_not_shown(path: Path, line: int, body: list[Piece]) -> Iterator[NotShown]:
    for kind, text, start in body:
        if kind != "text":
            raise wrong(path, start, '"## Not shown" is a list: - "Title": reason')
        entries: list[tuple[str, int]] = []
        for i, each in enumerate(text.splitlines()):
            if each.startswith("- "):
                entries.append((each[2:].strip(), start + i))
            elif entries:
                entries[-1] = (f"{entries[-1][0]} {each.strip()}", entries[-1][1])
            else:
                raise wrong(path, start + i, 'an entry of "## Not shown" begins with - "Title": reason')
        for entry, at in entries:
            match = re.fullmatch(r'(".+?"(?:, ?".+?")*): (.+)', entry)
            if not match:
                raise wrong(path, at, f'an entry of "## Not shown" is - "Title": reason, got "{entry[:40]}"')
            yield NotShown(read_titles(path, at, match[1]), match[2], at)


def read_titles(path: Path, line: int, text: str) -> tuple[str, ...]:
    """Read titles in double quotes with commas between them; a title may contain quotes of its own."""
    if len(text) < 3 or text[0] != '"' or text[-1] != '"':
        raise wrong(path, line, f'slides are titles in double quotes with commas between them, got "{text[:40]}"')
    titles = tuple(title.strip() for title in re.split(r'",\s*"', text[1:-1]))
    if not all(titles):
        raise wrong(path, line, "a slide's title is empty")
    return titles


def unlabel(path: Path, piece: Piece) -> str:
    label, _, text = piece[1].partition(":")
    if not text.strip():
        raise wrong(path, piece[2], f"there is nothing after {label}:")
    return join(text)


def join(text: str) -> str:
    return " ".join(text.split())


def count_sentences(text: str) -> int:
    """Count the sentences of an idea, without references such as [Vaswani et al. 2017] and without code."""
    plain = re.sub(r"`[^`]*`|\[[^\]]*\]", "x", join(text))
    plain = re.sub(r"\b(e\.g|i\.e|et al|vs|cf|etc)\.", r"\1", plain)
    return len(re.findall(r"[.!?](?=\s+\S|$)", re.sub(r"[.!?]\s+x$", ".", plain.strip()))) or 1


def wrong(path: Path, line: int, message: str) -> ValueError:
    return ValueError(f"{path.name}:{line}: {message}")
