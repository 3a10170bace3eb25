"""Every stop of every lesson runs in time; pages and notebooks are made from the same results."""

from __future__ import annotations

import ast
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from anyformer_course import check, lesson, notebooks, pages, render

ROOT = Path(__file__).parents[2]
SAMPLE = Path(__file__).with_name("lessons")
PAGE_LIMIT = 120.0  # processor seconds: a minute on two cores
BUSY = 2.0  # tests run side by side, so a stop may take longer than alone, where `check` allows 5 s


def read_all() -> dict[int, lesson.Lesson | ValueError]:
    """The lessons of the course and the sample. A mistake in one does not hide the others."""
    lessons: dict[int, lesson.Lesson | ValueError] = {}
    for folder in (lesson.FOLDER, SAMPLE):
        for number in lesson.numbers(folder):
            try:
                lessons[number] = lesson.load(number, folder)
            except ValueError as error:
                lessons[number] = error
    return lessons


def in_group(number: int, *values: Any, name: str) -> Any:
    """Values of a test; tests of one lesson share a process and so the results."""
    return pytest.param(*values, id=name, marks=pytest.mark.xdist_group(f"course-{number}"))


LESSONS = read_all()
READABLE = [which for which in LESSONS.values() if isinstance(which, lesson.Lesson)]
each_lesson = pytest.mark.parametrize(
    "which", [in_group(each.number, each, name=str(each.number)) for each in READABLE]
)
each_stop = pytest.mark.parametrize(
    "stop", [in_group(each.number, stop, name=stop.name) for each in READABLE for stop in each.stops]
)


@pytest.mark.parametrize("number", LESSONS)
def test_the_lesson_has_the_form(number: int) -> None:
    if isinstance(which := LESSONS[number], ValueError):
        raise which


@each_stop
def test_a_stop_runs_in_time(computed: Any, stop: lesson.Stop) -> None:
    for block in (stop.demonstration, stop.changed):
        shown, seconds = computed.measure(block)
        assert seconds <= BUSY * check.LIMIT, f"{block.where}: {seconds:.1f} s"
        assert shown.says not in (stop.see, stop.idea)
    results = [computed.run(block) for block in (stop.demonstration, stop.changed)]
    assert results[0].json() != results[1].json(), "the change changes nothing"
    assert not check.check_numbers(stop, *results)


@pytest.mark.parametrize(
    "pictures_of", ["demonstrations", pytest.param("all", marks=[pytest.mark.slow, pytest.mark.page])]
)
@each_lesson
def test_a_page(computed: Any, which: lesson.Lesson, pictures_of: str, tmp_path: Path) -> None:
    """The page has every result and picture, and mkdocs builds it with the theme of the site, strictly. Pictures take
    most of the time, so `make test` draws only those of the demonstrations."""
    computing = sum(computed.measure(block)[1] for stop in which.stops for block in (stop.demonstration, stop.changed))
    start = time.process_time()
    for stop in which.stops:
        computed.draw(stop, everything=pictures_of == "all")
    docs = tmp_path / "docs"
    (pictures := docs / str(which.number)).mkdir(parents=True)
    text = pages.lesson_page(which, pictures, computed.run)
    assert computing + time.process_time() - start <= PAGE_LIMIT
    for stop in which.stops:
        assert f"{{ #{stop.slug} }}" in text and f"`anyformer course {stop.name}`" in text and stop.see in text
        for block, name in ((stop.demonstration, stop.slug), (stop.changed, f"{stop.slug}-try")):
            shown = computed.run(block)
            assert render.escape(shown.says) in text and f"({which.number}/{name}.svg)" in text
            assert (pictures / f"{name}.svg").read_text(encoding="utf-8").startswith("<svg")
    assert len(list(pictures.iterdir())) == 2 * len(which.stops)
    (docs / f"{which.number}.md").write_text(text, encoding="utf-8")
    notebooks_folder = docs / "notebooks"
    notebooks_folder.mkdir()
    notebooks.write_notebook(which, notebooks_folder / f"{which.number}.ipynb")
    site = build(docs, tmp_path / "site")
    html = (site / f"{which.number}.html").read_text(encoding="utf-8")
    visible = re.sub(r"<(script|style|pre|code).*?</\1>", "", html, flags=re.DOTALL)
    assert html.count('class="shown"') == 2 * len(which.stops)
    for mark in ("??? ", "{ #", "{ .shown", "| ---", "```"):
        assert mark not in visible, f"{mark} is not Markdown in {which.number}.md"
    assert not re.search(r"\\[=^$~]", visible), "a backslash is printed"
    for stop in which.stops:
        for sentence in (stop.idea, stop.see, stop.change):
            assert not re.search(r"<\w", re.sub("`[^`]*`", "", sentence)), f"{stop.name}: a tag that browsers hide"


def build(docs: Path, site: Path) -> Path:
    """Build pages with the settings of mkdocs.yml, without its menu and hooks."""
    pytest.importorskip("material", reason="mkdocs-material is not installed: pip install 'anyformer[docs]'")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    for page in ("index", *map(str, lesson.numbers())):  # a page links the others
        if not (docs / f"{page}.md").exists():
            (docs / f"{page}.md").write_text("# Page\n", encoding="utf-8")
    settings = {"docs_dir": str(docs), "site_dir": str(site), "hooks": [], "plugins": [], "extra_css": []}
    config = load_config(str(ROOT / "mkdocs.yml"), strict=True, **settings)
    config.nav = None  # all pages of the folder
    build(config)
    return site


@each_lesson
def test_a_notebook(computed: Any, which: lesson.Lesson) -> None:
    """Every code cell runs, in order and in one namespace; the value of each has an HTML form with a picture."""
    book = json.loads(json.dumps(notebooks.notebook(which)))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    names: dict[str, Any] = {}
    values = []
    ids = [cell["id"] for cell in book["cells"]]
    assert len({*ids}) == len(ids) and all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each) for each in ids)
    for cell in book["cells"]:
        assert cell["cell_type"] in ("markdown", "code") and cell["metadata"] == {} and cell["source"]
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            tree = ast.parse("".join(cell["source"]))
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, cell["id"], "exec"), names)
            if last is not None:
                values.append(eval(compile(ast.Expression(last.value), cell["id"], "eval"), names))
    assert len(values) == 2 * len(which.stops)
    for value in values:
        html = value._repr_html_()
        assert "<table>" in html and "data:image/svg+xml;base64," in html
