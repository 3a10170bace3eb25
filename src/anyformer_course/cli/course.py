"""Walk through five lectures: `anyformer course` lists the lessons, `course 2` its stops, `course 2.3` runs a stop.

A stop is one idea of the slides: a demonstration that takes seconds, what you should see, and a change to try."""

from __future__ import annotations

import argparse
from typing import Any

from anyformer_course import lesson

ABOUT = "Walk through five lectures on Transformers, idea by idea, with demonstrations that run"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="LESSON[.STOP]", nargs="?", help="2, 2.3 or 2.attention-by-hand")
    parser.add_argument("--try", dest="changed", action="store_true", help="run the change that the stop suggests")
    parser.add_argument("--browser", action="store_true", help="open the page of the lesson in a browser")
    parser.add_argument("--notebook", metavar="FILE", help="write the lesson as a notebook (.ipynb)")
    parser.add_argument("--picture", metavar="FILE", help="save the picture of the stop: .svg, .png or .pdf")


def words() -> list[str]:
    """Return what the shell completes after the verb: lessons, stops and flags."""
    from anyformer.cli import verb_parser

    lessons = [lesson.load(number) for number in lesson.numbers()]
    stops = [name for each in lessons for stop in each.stops for name in (stop.name, f"{each.number}.{stop.slug}")]
    return [*(str(each.number) for each in lessons), *stops, *verb_parser("course").flags()]


def run(options: argparse.Namespace) -> None:
    if options.name is None:
        if options.changed or options.browser or options.notebook or options.picture:
            raise ValueError("name a lesson: anyformer course 2")
        return print_lessons()
    which, stop = lesson.find(options.name)
    if stop is None and (options.changed or options.picture):
        raise ValueError(f"name a stop, for example {which.number}.1: --try and --picture are about one stop")
    if options.notebook:
        from anyformer_course.notebooks import write_notebook

        write_notebook(which, options.notebook)
        print(f"written: {options.notebook}")
    elif options.browser:
        open_page(which, stop)
    elif stop is None:
        print_stops(which)
    else:
        print_stop(which, stop, options.changed, options.picture)


def print_lessons() -> None:
    from anyformer.cli.terminal import table

    lessons = [lesson.load(number) for number in lesson.numbers()]
    rows = [(str(each.number), each.title, str(len(each.stops))) for each in lessons]
    table(("lesson", "about", "stops"), rows, right=(2,))
    print("\n`anyformer course 2` lists the stops of lesson 2; `anyformer course 2.1` runs the first.")


def print_stops(which: lesson.Lesson) -> None:
    from anyformer.cli.terminal import table
    from anyformer_course.render import console

    to = console()
    to.print(f"[bold]{which.number}. {plain(which.title)}[/bold]\n\n{plain(which.introduction)}\n")
    table(("stop", "about"), [(stop.name, stop.title) for stop in which.stops])
    print(f"\n`anyformer course {which.number}.1` runs the first stop.")


def print_stop(which: lesson.Lesson, stop: lesson.Stop, changed: bool, picture: str | None) -> None:
    from anyformer.cli.terminal import spinner
    from anyformer_course.render import console, print_shown, save_picture

    to = console()
    block = stop.changed if changed else stop.demonstration
    slides = ", ".join(stop.slides)
    to.print(f"[bold]{stop.name} {plain(stop.title)}[/bold]  [dim]Slides: {plain(slides)}[/dim]\n")
    if changed:
        to.print(f"Try: {plain(stop.change)}\n")
    else:
        to.print(f"{plain(stop.idea)}\n")
    print_code(to, block.code)
    with spinner("running"):
        shown = block.run()
    print_shown(shown, to, whole="--browser shows all")
    if picture:
        save_picture(shown, picture)
        to.print(f"written: {plain(picture)}")
    if not changed:
        to.print(f"\nSee: {plain(stop.see)}\n\nTry: {plain(stop.change)}\n")
        print_code(to, stop.changed.code)
        to.print(f"`anyformer course {stop.name} --try` runs it; --browser shows the page with pictures.")
    if stop.number < len(which.stops):
        to.print(f"[dim]Next: anyformer course {which.number}.{stop.number + 1}[/dim]")


def print_code(to: Any, code: str) -> None:
    from rich.padding import Padding
    from rich.syntax import Syntax

    to.print(Padding(Syntax(code, "python", background_color="default", word_wrap=True), (0, 0, 1, 2)))


def plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def open_page(which: lesson.Lesson, stop: lesson.Stop | None) -> None:
    import webbrowser

    from anyformer.cli.terminal import spinner
    from anyformer_course.pages import cached_html

    with spinner(f"making the page of lesson {which.number}; this takes up to a minute the first time"):
        path = cached_html(which)
    address = path.as_uri() + (f"#{stop.slug}" if stop else "")
    print(address)
    webbrowser.open(address)
