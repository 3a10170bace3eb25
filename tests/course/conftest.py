"""What the tests of the course share: every stop runs once per session; its Shown serves pages and notebooks too."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import anyformer_course
from anyformer.specs import extensions
from anyformer_course import check, lesson
from anyformer_course.extension import register
from anyformer_course.shown import Shown, show

EMPTY = '<svg xmlns="http://www.w3.org/2000/svg"/>'
SAMPLE = Path(__file__).with_name("lessons")  # its lesson 7 has two stops


class Computed:
    """Results of `show` and of blocks, and pictures, by what they were made from."""

    def __init__(self) -> None:
        self.shows: dict[str, Shown] = {}
        self.blocks: dict[str, tuple[Shown, float]] = {}
        self.pictures: dict[int, tuple[Shown, str]] = {}

    def show(self, name: str, /, *inputs: Any, **options: Any) -> Shown:
        key = repr((name, inputs, sorted(options.items())))
        if key not in self.shows:
            shown = show(name, *inputs, **options)
            self.shows[key] = dataclasses.replace(shown, draw=functools.cache(shown.draw))
        return self.shows[key]

    def measure(self, block: lesson.Block) -> tuple[Shown, float]:
        if block.code not in self.blocks:
            self.blocks[block.code] = check.measure(block)
        return self.blocks[block.code]

    def run(self, block: lesson.Block) -> Shown:
        return self.measure(block)[0]

    def draw(self, stop: lesson.Stop, everything: bool) -> None:
        """Draw both pictures of a stop later; or draw the demonstration now, without computing its layout, which takes
        a third of the time, and use an empty picture for the change."""
        demonstration, changed = (self.run(block) for block in (stop.demonstration, stop.changed))
        for shown in (demonstration, changed):
            self.pictures.pop(id(shown), None)
        if not everything:
            figure = demonstration.draw()
            layout = figure.get_layout_engine()
            figure.set_layout_engine("none")
            demonstration.svg()
            figure.set_layout_engine(layout)
            self.pictures[id(changed)] = (changed, EMPTY)

    def svg(self, draw: Callable[[Shown], str], shown: Shown) -> str:
        if id(shown) not in self.pictures:
            self.pictures[id(shown)] = (shown, draw(shown))  # with the Shown, so that its id stays its own
        return self.pictures[id(shown)][1]


@pytest.fixture(scope="session")
def session_results() -> Computed:
    check.warm_up()
    return Computed()


@pytest.fixture
def computed(session_results: Computed, monkeypatch: pytest.MonkeyPatch) -> Computed:
    monkeypatch.setattr(anyformer_course, "show", session_results.show)
    draw = Shown.svg
    monkeypatch.setattr(Shown, "svg", lambda shown: session_results.svg(draw, shown))
    return session_results


@pytest.fixture
def shared_show(session_results: Computed, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Give a module the results that stops of the same lesson have, if they run in this process."""
    monkeypatch.setattr(request.module, "show", session_results.show)


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> lesson.Lesson:
    """The lesson of this folder, in place of the lessons of the course."""
    monkeypatch.setattr(lesson, "FOLDER", SAMPLE)
    return lesson.load(7)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The commands of the course, also if the distribution is not installed."""
    monkeypatch.setattr(extensions, "_registered", {})
    register()
    yield
