"""A recording as a spectrogram, and what is said in it when.

M channels, F frames.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

LONGEST, LINE = 30.0, 6.0  # seconds of a recording that are drawn, and of one line


class Word(NamedTuple):
    """A word, or a sentence where a model tells no less, from `start` to `end` in seconds."""

    start: float
    end: float
    text: str


class SpectrogramLine(NamedTuple):
    """A line of a picture: seconds from `start` to `end`, and the words that are said then, those too that go on into
    it from the line before or out of it."""

    start: float
    end: float
    power: Tensor  # (M, F)
    words: list[Word]


@dataclasses.dataclass(frozen=True)
class Sound:
    """What is drawn of a recording; who hears it says when it is asked for."""

    power: Tensor  # (M, F)
    step: float  # seconds from a frame to the next
    high: float  # what the last channel stands for, in `unit`
    unit: str
    hear: Callable[[], Iterable[Mapping[str, Any]]]  # {start, end, text}

    @functools.cached_property
    def words(self) -> list[Word]:
        found = [Word(each["start"], each["end"], each["text"]) for each in self.hear() if each["text"].strip()]
        if not found:
            raise ValueError("nothing is said in this recording, as far as the model hears: there are no words to show")
        return found

    @property
    def seconds(self) -> float:
        return self.power.shape[1] * self.step

    @property
    def about(self) -> str:
        cut = f"the first {LONGEST:g} of {self.seconds:.1f} seconds" if self.seconds > LONGEST else "what was heard"
        return f"{cut}, and when which words were"

    def lines(self) -> list[SpectrogramLine]:
        shown = min(self.seconds, LONGEST)
        number = max(1, math.ceil(shown / LINE - 1e-6))
        length = shown / number
        found = []
        for i in range(number):
            start, end = i * length, (i + 1) * length
            frames = slice(round(start / self.step), round(end / self.step))
            start, end = frames.start * self.step, frames.stop * self.step
            words = [word for word in self.words if word.start < end and (word.start >= start or word.end > start)]
            found.append(SpectrogramLine(start, end, self.power[:, frames], words))
        return found
