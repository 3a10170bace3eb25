"""Which slides of the decks have a stop?"""

from __future__ import annotations

from pathlib import Path

import pytest

from anyformer_course import coverage, lesson

DECKS = Path(__file__).parents[3] / "shared" / "lectures"
LONG = "\n".join(f"- point {i}" for i in range(26))
DECK = f"""# Outline

# **Self-attention**
- ▶ one

# Self-attention
- ▶ two

# Attention as a
{LONG}

# A "quoted"   title

# Live demo

# Questions
"""


def problems(which: lesson.Lesson, deck: str) -> list[str]:
    return coverage.compare(which, deck)[1]


def test_a_deck_with_headings(sample: lesson.Lesson) -> None:
    deck = DECK.replace("Attention as a\n", "Attention as a soft lookup\n")
    slides, found = coverage.compare(sample, deck)
    assert found == []
    assert [(slide.line, slide.stops) for slide in slides[:4]] == [
        (1, ["not shown: a list of topics."]), (3, ["7.1"]), (6, ["7.1"]), (9, ["7.1"]),
    ]  # fmt: skip
    assert [slide.stops for slide in slides[4:]] == [["7.2"], *[["not shown: needs a web page: none here."]] * 2]


def test_titles_that_the_deck_does_not_have(sample: lesson.Lesson) -> None:
    found = problems(sample, DECK.replace("# Live demo", "# Demo"))
    assert found[:2] == ['7.md:5: the deck has no "Attention as a soft lookup"', '7.md:48: the deck has no "Live demo"']
    assert "lines 9 to 36 of the deck (27 lines with text) have no stop" in found[2] and len(found) == 3


def test_titles_out_of_order(sample: lesson.Lesson) -> None:
    deck = DECK.replace("Attention as a\n", "Attention as a soft lookup\n")
    first, last = deck.index("# **Self"), deck.index('# A "quoted"')
    moved = deck[last : deck.index("# Live")] + deck[:last] + deck[deck.index("# Live") :]
    assert first and len(problems(sample, moved)) == 1
    assert '"A "quoted" title" (line 1 of the deck) comes before' in problems(sample, moved)[0]


def test_titles_of_several_lines_in_a_deck_without_headings(sample: lesson.Lesson) -> None:
    deck = "Outline\n\nSelf-attention\n\nAttention as a\nsoft lookup\n{}\n\nA “quoted” title\n\nLive demo\nQuestions\n"
    few, many = "\n".join(["text"] * 20), "\n".join(["text"] * 60)
    assert problems(sample, deck.format(few)) == []
    (found,) = problems(sample, deck.format(many))
    assert "(37 lines with text) have no stop" in found  # 62 lines, of which the title covers 25


def test_the_command(sample: lesson.Lesson, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deck = tmp_path / "006_x.txt"
    deck.write_text(DECK.replace("Attention as a\n", "Attention as a soft lookup\n"))
    assert coverage.main([str(tmp_path)]) == 0 and "no problems" in capsys.readouterr().out
    deck.write_text(DECK)
    assert coverage.main([str(tmp_path)]) == 1 and "2 problems" in capsys.readouterr().out
    deck.unlink()
    assert coverage.main([str(tmp_path)]) == 2 and "expected a file 006_*.txt" in capsys.readouterr().err


@pytest.mark.skipif(not DECKS.exists(), reason="the decks are not here: ../shared/lectures")
@pytest.mark.parametrize("number", lesson.numbers() or [pytest.param(0, marks=pytest.mark.skip("no lessons yet"))])
def test_every_slide_is_covered(number: int) -> None:
    deck = coverage.deck_path(DECKS, number).read_text(encoding="utf-8")
    assert problems(lesson.load(number), deck) == []
