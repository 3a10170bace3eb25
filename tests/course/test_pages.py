"""Pages of the course: written once, rewritten if a source changes, one HTML file for the browser."""

from __future__ import annotations

import importlib.util
import re
import xml.dom.minidom
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from anyformer_course import in_html, lesson, pages, render
from anyformer_course.shown import Shown
from anyformer_course.table import Table, number

ROOT = Path(__file__).parents[2]


def test_pages_are_kept_until_a_source_changes(
    computed: Any, sample: lesson.Lesson, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "course"
    assert pages.write_pages(folder, computed.run) == [folder / "7.md"]
    assert {path.name for path in folder.iterdir()} == {"7.md", "7", "index.md", "notebooks"}
    assert "| [7. A sample](7.md) | 2 | [7.ipynb](notebooks/7.ipynb) |" in (folder / "index.md").read_text()

    def never(block: lesson.Block) -> Shown:
        raise AssertionError("the page is up to date")

    assert pages.write_pages(folder, never) == []
    text = sample.path.read_text().replace("## Two words", "## Two short words")
    (tmp_path / "7.md").write_text(text)
    monkeypatch.setattr(lesson, "FOLDER", tmp_path)
    assert pages.write_pages(folder, computed.run) == [folder / "7.md"]
    assert {path.name for path in (folder / "7").iterdir()} == {
        "attention-by-hand.svg", "attention-by-hand-try.svg", "two-short-words.svg", "two-short-words-try.svg",
    }  # fmt: skip
    monkeypatch.setattr(pages, "code_digest", lambda: "other code")
    assert pages.write_pages(folder, computed.run) == [folder / "7.md"]


def test_one_html_file(computed: Any, sample: lesson.Lesson, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = pages.cached_html(sample, computed.run)
    html = path.read_text(encoding="utf-8")
    assert html.count("<h2 id=") == 2 and html.count("data:image/svg+xml") == 4 and "color-scheme: light dark" in html
    assert "<code>&#x27;cat&#x27;</code>" in html and "Live demo, Questions: needs a web page" in html
    assert re.search(r'(src|href)="(?!data:|#)', html) is None  # nothing else is needed
    before = path.stat().st_mtime_ns
    assert pages.cached_html(sample, computed.run) == path and path.stat().st_mtime_ns == before


def test_pictures_are_the_same_every_time_and_white() -> None:
    shown = lesson.Block('show("attention")', Path("7.md"), 1).run()
    first = shown.svg()
    assert first == shown.svg() and "fill: #ffffff" in first and "<dc:date>" not in first
    xml.dom.minidom.parseString(first)


TABLE = Table("a_b", ("word", "x|y", "on"), [["<b>", 0.123456, True], ["c*", 12345, None]])


def test_tables_on_pages_and_in_notebooks() -> None:
    assert render.markdown_table(TABLE).splitlines() == [
        "| word | x\\|y | on |", "| --- | ---: | --- |", "| &lt;b&gt; | 0.123 | yes |", "| c\\* | 12,345 |  |",
    ]  # fmt: skip
    assert render.escape("x = 2^3 $ ~ [a] <b>") == r"x = 2^3 $ ~ \[a\] &lt;b&gt;"  # no backslash that Markdown keeps
    html = in_html.table_html(TABLE)
    assert '<td>&lt;b&gt;</td><td style="text-align: right">0.123</td><td>yes</td>' in html


@pytest.mark.parametrize(("rows", "folded"), [(10, False), (11, True)])
def test_long_tables_are_folded(rows: int, folded: bool) -> None:
    table = Table("t", ("a",), [[i] for i in range(rows)])
    text = render.markdown_shown(Shown("s", [table], lambda: None), "x.svg")
    assert ('??? info "t' in text) == folded and ("\n    | 3 |" in text) == folded
    both = render.markdown_shown(Shown("s", [TABLE] * 3, lambda: None), "x.svg")
    assert both.count("???") == 1  # the third table


@pytest.mark.parametrize(("value", "text"), [
    (0.00012345, "0.000123"), (1.23456, "1.23"), (12.3456, "12.3"), (1234.5, "1230"), (98765.4, "98,800"),
    (1e-9, "1e-09"), (float("nan"), "nan"), (-0.0, "0"), (2017, "2017"), (10000, "10,000"), (False, "no"), (None, ""),
])  # fmt: skip
def test_numbers(value: Any, text: str) -> None:
    assert number(value) == text


def test_wide_and_long_tables_are_cut_in_the_terminal() -> None:
    wide = Table("t", ("word", *(f"column {i}" for i in range(30))), [["cat", *range(30)]] * 30)
    assert render.fitting_columns(wide, 60) == [0, 1, 2, 3, 4, 5]
    assert render.fitting_columns(Table("t", ("a", "b"), [["x" * 99, "y" * 99]]), 60) == [0, 1]  # words wrap
    _, drawn, note = render.terminal_table(wide, 60)
    assert Console(width=200).measure(drawn).maximum <= 60
    assert note.plain == "... 25 more columns and 6 more rows; --json prints all"


def test_text_of_lessons_as_html() -> None:
    assert in_html.text_html("`a<b>` is **so** *nice* & 2 * 3 [x](https://y.org)") == (
        '<code>a&lt;b&gt;</code> is <strong>so</strong> <em>nice</em> &amp; 2 * 3 <a href="https://y.org">x</a>'
    )


def test_the_course_is_the_first_tab_if_its_pages_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.search(r"\nnav:\n  - Course:\n +- course/index.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    monkeypatch.setattr(hooks, "ROOT", tmp_path)
    (course := tmp_path / "docs" / "course").mkdir(parents=True)
    (tmp_path / "docs" / "start.md").touch()

    def menu() -> Any:
        nav = [{"Course": ["course/index.md"]}, {"Start": "start.md"}, {"How to": []}, {"Results": []}]
        return hooks.on_config(SimpleNamespace(nav=nav)).nav

    assert "Course" not in repr(menu())
    for name in ("index.md", "1.md", "2.md"):
        (course / name).touch()
    assert menu()[0] == {"Course": ["course/index.md", "course/1.md", "course/2.md"]} and menu()[2] == {"How to": []}
