"""`python -m anyformer_course.coverage ../shared/lectures [N ...]`: which slides of the decks have a stop?

Lists the slides of each deck with their stops. Reports titles that the deck does not contain, titles out of the deck's
order, and stretches of more than 25 lines that no stop and no entry of "Not shown" cites.

A deck is a text file. Its slides begin with "# Title" or "Page N:"; in a deck without such lines, every cited title
begins a slide that ends 25 lines later at the latest.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from anyformer_course import lesson

MAX_GAP = 25  # lines with text
MAX_TITLE_LINES = 5


@dataclasses.dataclass
class Slide:
    line: int  # from 1
    title: str
    stops: list[str]  # "2.3", or "not shown: reason"


@dataclasses.dataclass(frozen=True)
class Citation:
    title: str
    by: str  # name of the stop, or "not shown: reason"
    line: int  # of the lesson
    ordered: bool


class Deck:
    """The lines of a deck without Markdown marks, and the lines where slides begin."""

    def __init__(self, text: str) -> None:
        raw = text.splitlines()
        self.titles = [clean(line) for line in raw]
        self.lines = [plain(line) for line in raw]
        self.filled = [i for i, line in enumerate(self.lines) if line]
        self.headings = [i for i, line in enumerate(raw) if re.match(r"#+ |Page \d+:", line) and self.lines[i]]

    def find(self, title: str) -> list[int]:
        """Return the lines where a title occurs: as whole lines, otherwise as the start of a line, otherwise inside."""
        wanted = plain(title)
        joined = {i: self.lines_from(i) for i in self.filled}
        whole = [i for i, texts in joined.items() if wanted in texts]
        start = [i for i, texts in joined.items() if texts[-1].startswith(f"{wanted} ")]
        inside = [i for i in self.filled if len(wanted) > 3 and re.search(rf"\b{re.escape(wanted)}", self.lines[i])]
        headed = [i for i in whole if i in set(self.headings)]
        return sorted({*headed}) or whole or start or inside

    def lines_from(self, start: int) -> list[str]:
        """Return a line, the line with the next one, and so on: titles may span several lines."""
        lines = [line for line in self.lines[start : start + 2 * MAX_TITLE_LINES] if line][:MAX_TITLE_LINES]
        return [" ".join(lines[: i + 1]) for i in range(len(lines))]

    def end(self, start: int) -> int:
        """Return the line after the slide that contains the line `start`."""
        if self.headings:
            return next((i for i in self.headings if i > start), len(self.lines))
        later = [i for i in self.filled if i >= start]
        return later[MAX_GAP] if len(later) > MAX_GAP else len(self.lines)

    def filled_between(self, start: int, end: int) -> int:
        return sum(start <= i < end for i in self.filled)


def plain(text: str) -> str:
    """Return a text without Markdown marks, colons, case and repeated spaces, with plain quotes and dashes."""
    text = re.sub(r"[“”„]", '"', re.sub(r"[‘’]", "'", re.sub(r"[–—]", "-", text)))
    return " ".join(clean(text).replace(":", " ").split()).lower()


def clean(text: str) -> str:
    """Remove Markdown marks and bullets."""
    text = re.sub(r"^\s*(?:[-*•▶►#>]+\s*)+", "", text)
    return " ".join(re.sub(r"[*_`#▶►\\]", "", text).split())


def citations(which: lesson.Lesson) -> Iterator[Citation]:
    for stop in which.stops:
        yield from (Citation(title, stop.name, stop.line, True) for title in stop.slides)
    for entry in which.not_shown:
        yield from (Citation(title, f"not shown: {entry.reason}", entry.line, False) for title in entry.slides)


def compare(which: lesson.Lesson, text: str) -> tuple[list[Slide], list[str]]:
    """Return the slides of a deck with their stops, and the problems."""
    deck = Deck(text)
    problems: list[str] = []
    cited: dict[int, list[str]] = {}  # line of the deck -> who cites it
    covered: list[tuple[int, int]] = []
    current = -1  # line of the last title that a stop cites
    for each in citations(which):
        where = f"{which.path.name}:{each.line}"
        lines = deck.find(each.title)
        if not lines:
            problems.append(f'{where}: the deck has no "{each.title}"')
            continue
        if each.ordered:
            later = [line for line in lines if line >= current]
            if not later:
                problems.append(f'{where}: "{each.title}" (line {lines[-1] + 1} of the deck) comes before the slide of '
                                f"the stop above it (line {current + 1})")  # fmt: skip
            # a title may be written once for slides that follow each other
            run = list(repeated_titles(deck, later or lines[-1:]))
            current = run[0] if later else current
        else:
            run = lines
        for line in run:
            cited.setdefault(line, []).append(each.by)
            covered.append((line, deck.end(line)))
    slides = [Slide(line + 1, deck.titles[line], cited.get(line, [])) for line in {*deck.headings, *cited}]
    return sorted(slides, key=lambda slide: slide.line), problems + list(gaps(which, deck, covered))


def repeated_titles(deck: Deck, lines: list[int]) -> Iterator[int]:
    """Yield the first line and the slides with the same title that follow it directly."""
    end = None
    for line in lines:
        if end is not None and line > end:
            return
        yield line
        end = deck.end(line)


def gaps(which: lesson.Lesson, deck: Deck, covered: list[tuple[int, int]]) -> Iterator[str]:
    """Yield the stretches of more than MAX_GAP lines with text that nothing cites."""
    start = 0
    for begin, end in [*sorted(covered), (len(deck.lines), len(deck.lines))]:
        if begin > start and (count := deck.filled_between(start, begin)) > MAX_GAP:
            first = next(i for i in deck.filled if i >= start)
            message = f"lines {first + 1} to {begin} of the deck ({count} lines with text) have no stop"
            yield f'{which.path.name}: {message}; they begin with "{deck.titles[first][:60]}"'
        start = max(start, end)


def deck_path(folder: Path, number: int) -> Path:
    found = sorted(folder.glob(f"{number - 1:03}_*.txt"))
    if not found:
        raise ValueError(f"{folder} has no deck of lecture {number}: expected a file {number - 1:03}_*.txt")
    return found[0]


def main(arguments: list[str]) -> int:
    if not arguments:
        print("usage: python -m anyformer_course.coverage FOLDER [N ...]", file=sys.stderr)
        return 2
    folder, count = Path(arguments[0]), 0
    try:
        for number in [int(each) for each in arguments[1:]] or lesson.numbers():
            which = lesson.load(number)
            slides, problems = compare(which, deck_path(folder, number).read_text(encoding="utf-8"))
            print(f"Lecture {number}. {which.title}: {len(which.stops)} stops")
            for slide in slides:
                print(f"  {slide.line:5}  {slide.title[:70]:70}  {', '.join(slide.stops) or '-'}")
            print(*(f"  {problem}" for problem in problems), sep="\n", end="\n" if problems else "")
            count += len(problems)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{count} problems" if count else "no problems")
    return 1 if count else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
