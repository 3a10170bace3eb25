"""The types of tasks and of their results, for editors and type checkers.

A type describes the result with default options. In a list, an input that fails gives {"error": message}. A folder of
pictures or recordings gives one result per file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, NotRequired, ParamSpec, Protocol, TypedDict, TypeVar, overload

import numpy as np

from anyformer.tasks.task import Source

Row = Mapping[str, Any]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
R_co = TypeVar("R_co", covariant=True)
S_co = TypeVar("S_co", covariant=True)


class Task(Protocol[P, R_co, S_co]):
    """A task: one input gives an R, and a list of inputs gives an S."""

    @overload
    def __call__(self, model: Source, inputs: str | Row, *args: P.args, **options: P.kwargs) -> R_co: ...
    @overload
    def __call__(self, model: Source, inputs: Sequence[Any], *args: P.args, **options: P.kwargs) -> S_co: ...
    @overload
    def __call__(self, model: Source, inputs: object, *args: P.args, **options: P.kwargs) -> R_co: ...  # a picture


def task(function: Callable[Concatenate[Source, Any, P], R]) -> Task[P, R, list[R]]:
    """Declare a task by a function that is annotated with the result for one input."""
    declared: Any = function
    return declared


def task_with(several: type[S]) -> Callable[[Callable[Concatenate[Source, Any, P], R]], Task[P, R, S]]:
    """Declare a task like `task`, with the class of a list of results."""
    declare: Any = task
    return declare


class Label(TypedDict):
    label: str
    score: float
    file: NotRequired[str]  # of a picture in a folder


class FoundAnswer(TypedDict):
    answer: str
    score: float
    start: int
    end: int
    no_answer: float


class FilledMask(TypedDict):
    score: float
    token: int
    token_str: str
    sequence: str


class Entity(TypedDict):
    entity_group: str
    score: float
    word: str
    start: int
    end: int
    entity: NotRequired[str]  # with aggregation="none", instead of `entity_group`
    index: NotRequired[int]


class Follows(TypedDict):
    follows: bool
    score: float


class Replaced(TypedDict):
    word: str
    replaced: bool
    score: float
    start: int
    end: int


class Language(TypedDict):
    language: str
    name: str
    score: float


class FewShotAnswer(TypedDict):
    answer: str
    right: NotRequired[bool]
    scores: NotRequired[dict[str, float]]


class FoundImage(TypedDict):
    file: str
    score: float
    error: NotRequired[str]


class Drawn(TypedDict):
    text: str
    count: NotRequired[int]
    file: NotRequired[str]
    pictures: NotRequired[np.ndarray]  # (count, H, W, C)


Episode = TypedDict("Episode", {"asked": float, "return": float, "steps": int})
