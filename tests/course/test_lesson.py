"""Lessons are read strictly: a mistake names the file and the line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from anyformer_course import check, lesson
from anyformer_course.shown import Shown, Table

TEXT = (Path(__file__).with_name("lessons") / "7.md").read_text(encoding="utf-8")


def read(folder: Path, text: str) -> lesson.Lesson:
    (folder / "7.md").write_text(text, encoding="utf-8")
    return lesson.read(folder / "7.md")


def test_a_lesson(sample: lesson.Lesson) -> None:
    assert (sample.number, sample.title) == (7, "A sample") and sample.introduction.startswith("What the tests read.")
    first, second = sample.stops
    assert (first.name, first.slug, first.line) == ("7.1", "attention-by-hand", 5)
    assert first.slides == ("Self-attention", "Attention as a soft lookup") and second.slides == ('A "quoted" title',)
    assert first.idea.endswith("[Vaswani et al. 2017]") and first.see.startswith("each row")
    assert first.change.startswith("leave out") and "scale=1.0" in first.changed.code
    assert second.demonstration.line == TEXT.splitlines().index('words = "red green"') + 1
    assert [(each.slides, each.reason) for each in sample.not_shown] == [
        (("Outline",), "a list of topics."), (("Live demo", "Questions"), "needs a web page: none here."),
    ]  # fmt: skip


def test_stops_are_found_by_number_and_title(sample: lesson.Lesson) -> None:
    assert lesson.find("7") == (sample, None)
    assert lesson.find("7.2")[1] == lesson.find("7.two-words")[1] == sample.stops[1]
    for name, message in {
        "7.3": "lesson 7 has stops 1 to 2, not 3", "7.two-wods": "did you mean 'two-words'?",
        "8": "there is no lesson 8; lessons: 7", "x": "is not a lesson or a stop", "7.": "is not a lesson or a stop",
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=message.replace("?", r"\?")):
            lesson.find(name)


@pytest.mark.parametrize(("old", "new", "message"), [
    ("# Lecture 7.", "# Lecture 2.", '7.md:1: the title must be "# Lecture 7. Title"'),
    ("What the tests read. Every stop is short.\n", "", "7.md:1: a lesson needs an introduction"),
    ('Slides: "Self', 'Slide: "Self', '7.md:7: stop "Attention by hand": expected Slides:, got "Slide:'),
    ('Slides: "Self-attention", ', "Slides: Self-attention, ", "7.md:7: slides are titles in double quotes"),
    ('Slides: "Self-attention", ', 'Slides: "", ', "7.md:7: a slide's title is empty"),
    ("Each word asks all words, itself too.", "A. B. C.", "7.md:10: the idea has 4 sentences"),
    (
        '```python\nshow("attention", "the cat sat down")',
        '```\nshow("x")',
        "7.md:12: a block begins with ```python",
    ),
    ("See: each row", "You see: each row", '7.md:16: stop "Attention by hand": expected See:, got "You see'),
    ("Try: leave out", "Leave out", "expected Try:, got"),
    ("scale=1.0)\n```", "scale=1.0)\n```\n\nMore.", '7.md:24: stop "Attention by hand" goes on after the change'),
    ("## Two words", "## Attention, by hand", 'the stop "Attention, by hand" has the title of line 5'),
    ('", scale=1.0)', '")', '7.md:21: the change of "Attention by hand" is the same code'),
    ('sat down", scale=1.0)', 'sat down", scale=)', "7.md:21: the Python block has a mistake"),
    ('show("attention", "the cat sat down", scale=1.0)', "x = 1", "7.md:21: the last line of a block must be"),
    ('- "Outline": a list', "- Outline: a list", 'Not shown" is - "Title": reason, got "Outline'),
    ("## Two words", "### Two words", 'only "# " and "## " are headings'),
    ("## Two words", "# Two words", 'a lesson has one "# " heading'),
    ("seed=2)\n```", "seed=2)\n", "the block has no closing ```"),
    ("See: two rows.", "See:", "there is nothing after See:"),
])  # fmt: skip
def test_mistakes_name_the_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert TEXT.count(old) >= 1
    with pytest.raises(ValueError) as error:
        read(tmp_path, TEXT.replace(old, new, 1))
    assert str(error.value).startswith("7.md:") and message in str(error.value) and "\n" not in str(error.value)


def test_a_stop_that_ends_early_and_headings_after_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='7.md:18: stop "Attention by hand" ends before the change'):
        read(tmp_path, TEXT.replace('```python\nshow("attention", "the cat sat down", scale=1.0)\n```\n', ""))
    stop = TEXT[TEXT.index("## Two words") : TEXT.index("## Not shown")]
    with pytest.raises(ValueError, match='"## Not shown" must be the last heading'):
        read(tmp_path, TEXT + "\n" + stop.replace("Two words", "Later"))


@pytest.mark.parametrize(("idea", "sentences"), [
    ("One. Two. [Vaswani et al. 2017]", 2), ("One [Xu 2020]. Two [Su et al. 2021].", 2),
    ("It has 2.5 B. See e.g. a.", 2), ("One. [Xu 2020] Two! Three? Four.", 4), ("The call `a.b. c` is one", 1),
])  # fmt: skip
def test_sentences(idea: str, sentences: int) -> None:
    assert lesson.count_sentences(idea) == sentences


def test_a_block_gives_a_shown(tmp_path: Path) -> None:
    path = tmp_path / "7.md"
    assert lesson.Block('word = "cat"\nshow("attention", word + " sat")', path, 3).run().tables[0].rows[0][0] == "cat"
    with pytest.raises(ValueError, match=r"7.md:3: the last expression gives int, not a Shown"):
        lesson.Block("1 + 1", path, 3).run()
    draws = [lesson.Block('show("attention", seed=int(torch.randint(99, ())))', path, 3).run().json() for _ in range(2)]
    assert draws[0] == draws[1]  # every block begins with the same seed
    with pytest.raises(ZeroDivisionError) as error:
        lesson.Block("\n\n1 / 0", path, 3).run()
    assert (error.traceback[-1].frame.code.raw.co_filename, error.traceback[-1].lineno + 1) == (str(path), 5)


def figure() -> object:
    from matplotlib.figure import Figure

    return Figure()


@pytest.mark.parametrize(("shown", "message"), [
    (Shown("", [Table("t", ("a",), [[1]])], figure), "`says` must be one line"), (Shown("a", [], figure), "no table"),
    (Shown("a", [Table("t", ("a",), [])], figure), "has no rows"),
    (Shown("a", [Table("t", ("a", "b"), [[1]])], figure), "a row has 1 cells, 2 columns"),
    (Shown("a", [Table("t", ("a",), [[[1]]])], figure), "a cell is list"),
    (Shown("a", [Table("t", ("a",), [[1]])], lambda: None), "not a matplotlib figure"),
])  # fmt: skip
def test_the_check_sees_wrong_forms(shown: Shown, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check.check_shown(shown)


def test_the_check_prints_every_stop(
    sample: lesson.Lesson, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check.main(["7"]) == 0
    out = capsys.readouterr().out
    assert "7.1   ok" in out and "Two words" in out and "looks most at" in out and "2 stops, all fine" in out
    assert check.main(["7.9"]) == 1 and "stops 1 to 2" in capsys.readouterr().err
    static = dataclasses.replace(sample.stops[0], changed=sample.stops[0].demonstration)
    assert not check.check_stop(static) and "the change gives the same numbers" in capsys.readouterr().out
    monkeypatch.setattr(check, "LIMIT", -1.0)
    assert check.main(["7.1"]) == 1 and "TOO SLOW" in capsys.readouterr().out
    broken = lesson.Block('show("attention", "")', sample.path, 13)
    with pytest.raises(ValueError, match=r"7.md:13: ValueError: the text is empty"):
        check.measure(broken)


def test_numbers_of_see_are_printed(sample: lesson.Lesson) -> None:
    """A number is seen only if it is in the sentence or in a cell that the terminal prints."""
    rows = [["a", 0.2549, 1234567, 0.615, *[123456789] * 9, 0.025], *[["b"] * 13 + [475.5]] * 30]
    columns = ["name", "share", "count", "p", *(f"a long name of column {i}" for i in range(9)), "cut"]
    shown = Shown("it takes 1.5 s, -3.0 and 3.14e+23", [Table("t", columns, rows)], lambda: None)

    def unseen(text: str) -> list[str]:
        return check.unseen_numbers(text, shown, 'show("x", 7.5)')

    assert unseen("0.25, 25.5 %, 0.615, 1,234,567, 1.5, -3.0, 3.14e23 and 7.5 (given)") == []
    assert unseen("1.2 million, but not 1.3 million") == ["1.3 million"]
    assert unseen("0.35, 4.75 and 1,234,568") == ["0.35", "4.75", "1,234,568"]
    assert unseen("0.27 and 26 % on another processor, but not 29 %") == ["29"]
    assert unseen("0.025 is in a column that does not fit, 475.5 too") == ["0.025", "475.5"]
    assert unseen("it takes 9.5 s (the slide: 8.5 s), (published: 4.25)") == ["9.5"], "a source is named"
    assert unseen("GPT-2, T5, BERT-24, 3 words, the paper of 2017") == [], "names, small numbers and years"
    stop = dataclasses.replace(sample.stops[0], see="it is 4.5", change="it becomes 5.5")
    messages = check.check_numbers(stop, shown, shown)
    assert [message.split(",")[0] for message in messages] == ["See names 4.5", "Try names 5.5"]


def test_a_stop_with_a_wrong_number_fails(sample: lesson.Lesson, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.check_stop(sample.stops[0])
    assert not check.check_stop(dataclasses.replace(sample.stops[0], see="the weight is 475.5"))
    assert "FAILED: See names 475.5" in capsys.readouterr().out
