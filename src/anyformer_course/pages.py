"""Write the pages of the course: `python -m anyformer_course.pages docs/course` runs every stop.

Each lesson becomes N.md with a folder of pictures; index.md lists the lessons. A page whose sources did not change is
kept. `anyformer course N --browser` shows one HTML file with everything inside.
"""

from __future__ import annotations

import functools
import hashlib
import html
import os
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

from anyformer_course import lesson, notebooks, render
from anyformer_course.in_html import text_html
from anyformer_course.shown import Shown

Run = Callable[[lesson.Block], Shown]


def run_block(block: lesson.Block) -> Shown:
    return block.run()


# -- pages of the site ------------------------------------------------------------------------------------------------


def write_pages(folder: Path, run: Run = run_block) -> list[Path]:
    """Write every page that is missing or older than its sources; return the pages that were written."""
    folder.mkdir(parents=True, exist_ok=True)
    lessons = [lesson.load(number) for number in lesson.numbers()]
    written = []
    for which in lessons:
        path, mark = folder / f"{which.number}.md", f"<!-- {digest(which)} -->"
        if path.exists() and path.read_text(encoding="utf-8").rstrip().endswith(mark):
            continue
        shutil.rmtree(folder / str(which.number), ignore_errors=True)
        pictures = folder / str(which.number)
        pictures.mkdir()
        path.write_text(f"{lesson_page(which, pictures, run)}\n{mark}\n", encoding="utf-8")
        written.append(path)
    write_if_changed(folder / "index.md", index_page(lessons))
    notebooks.write_all(folder / "notebooks")
    return written


def write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def index_page(lessons: list[lesson.Lesson]) -> str:
    parts = [
        "# Course",
        "Five lectures on Transformers that you can run. Every idea of the slides is a stop: a demonstration that "
        "takes seconds, a picture, what you should see, and one change to try.",
    ]
    if lessons:
        rows = "\n".join(
            f"| [{which.number}. {render.escape(which.title)}]({which.number}.md) | {len(which.stops)} | "
            f"[{which.number}.ipynb](notebooks/{which.number}.ipynb) |"
            for which in lessons
        )
        parts.append(f"| lesson | stops | notebook |\n| --- | ---: | --- |\n{rows}")
    parts.append(
        "In the terminal, `anyformer course` lists the lessons, `anyformer course 2.1` runs a stop, and "
        '`anyformer show attention "your own text"` computes a worked example on your text.'
    )
    return "\n\n".join(parts) + "\n"


def lesson_page(which: lesson.Lesson, pictures: Path, run: Run) -> str:
    """Return a lesson as Markdown; write its pictures into the folder `pictures`, which is next to the page."""
    number = which.number
    wide = "---\nhide: [navigation]\n---"  # room for pictures and tables; the links below replace the menu
    others = " · ".join(f"**{each}**" if each == number else f"[{each}]({each}.md)" for each in lesson.numbers())
    parts = [wide, f"# {number}. {which.title}", f"[Lessons](index.md): {others}", which.introduction]
    parts.append(
        f"The same as a [notebook](notebooks/{number}.ipynb), and in the terminal: `anyformer course {number}`."
    )
    for stop in which.stops:
        shown = [run(block) for block in (stop.demonstration, stop.changed)]
        names = [f"{stop.slug}.svg", f"{stop.slug}-try.svg"]
        for each, name in zip(shown, names):
            (pictures / name).write_text(each.svg(), encoding="utf-8")
        paths = [f"{pictures.name}/{name}" for name in names]
        slides = ", ".join(f"“{render.escape(title)}”" for title in stop.slides)
        parts += [
            f"## {stop.name} {stop.title} {{ #{stop.slug} }}",
            f"Slides: {slides}",
            stop.idea,
            f"```python\n{stop.demonstration.code}\n```",
            f"In the terminal: `anyformer course {stop.name}`",
            render.markdown_shown(shown[0], paths[0]),
            f"**See:** {stop.see}",
            f"**Try:** {stop.change}",
            f"```python\n{stop.changed.code}\n```",
            f'??? example "Result: anyformer course {stop.name} --try"\n\n'
            + textwrap.indent(render.markdown_shown(shown[1], paths[1], folded=True), "    "),
        ]
    if which.not_shown:
        entries = [f"- “{render.escape('”, “'.join(each.slides))}”: {each.reason}" for each in which.not_shown]
        parts += ["## Not shown here", "\n".join(entries)]
    return "\n\n".join(parts) + "\n"


# -- one HTML file ----------------------------------------------------------------------------------------------------

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 48rem; margin: auto; padding: 1rem; }
pre, code { font-family: ui-monospace, monospace; font-size: 0.9em; }
pre { padding: 0.75rem; overflow-x: auto; white-space: pre-wrap; border: 1px solid #8886; border-radius: 4px; }
table { border-collapse: collapse; font-size: 0.85em; }
th, td { padding: 0.2rem 0.6rem; border-bottom: 1px solid #8884; text-align: left; }
img { border-radius: 4px; }
@media (max-width: 45rem) {
  p:has(> img) { overflow-x: auto; }
  img { max-width: none !important; zoom: 0.7; }
}
.slides { opacity: 0.75; font-size: 0.9em; }
"""


def cached_html(which: lesson.Lesson, run: Run = run_block) -> Path:
    """Return the file with the page of a lesson; write it if its sources changed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anyformer" / "course"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        cache = Path(tempfile.gettempdir())
    path = cache / f"{which.number}-{digest(which)[:12]}.html"
    if not path.exists():
        part = path.with_suffix(".part")
        part.write_text(html_page(which, run), encoding="utf-8")
        part.replace(path)
    return path


def html_page(which: lesson.Lesson, run: Run = run_block) -> str:
    text, title = text_html, html.escape(f"{which.number}. {which.title}")
    body = [f"<h1>{title}</h1>", *(f"<p>{text(each)}</p>" for each in which.introduction.split("\n\n"))]
    links = "".join(f'<li><a href="#{stop.slug}">{text(stop.title)}</a></li>' for stop in which.stops)
    body.append(f"<details><summary>{len(which.stops)} stops</summary><ol>{links}</ol></details>")
    for stop in which.stops:
        shown, changed = (run(block)._repr_html_() for block in (stop.demonstration, stop.changed))
        body += [
            f'<h2 id="{stop.slug}">{stop.name} {text(stop.title)}</h2>',
            f'<p class="slides">Slides: {html.escape(", ".join(stop.slides))}</p>',
            f"<p>{text(stop.idea)}</p><pre>{html.escape(stop.demonstration.code)}</pre>{shown}",
            f"<p><strong>See:</strong> {text(stop.see)}</p><p><strong>Try:</strong> {text(stop.change)}</p>",
            f"<pre>{html.escape(stop.changed.code)}</pre>",
            f"<details><summary>Result: anyformer course {stop.name} --try</summary>{changed}</details>",
        ]
    if which.not_shown:
        entries = [f"<li>{html.escape(', '.join(each.slides))}: {text(each.reason)}</li>" for each in which.not_shown]
        body.append(f"<h2>Not shown here</h2><ul>{''.join(entries)}</ul>")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


# -- what a page is made from -----------------------------------------------------------------------------------------


def digest(which: lesson.Lesson) -> str:
    """Return a hash of the lesson and of the code of both packages."""
    return hashlib.sha256(which.path.read_bytes() + code_digest().encode()).hexdigest()


@functools.cache
def code_digest() -> str:
    import anyformer

    total = hashlib.sha256()
    for package in (Path(anyformer.__file__).parent, Path(__file__).parent):
        for path in sorted(package.rglob("*")):
            if path.suffix in (".py", ".json", ".csv"):
                total.update(path.read_bytes())
    return total.hexdigest()


if __name__ == "__main__":
    for page in write_pages(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/course")):
        print(f"written: {page}")
