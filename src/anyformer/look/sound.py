"""The spectrogram of a recording, and the words in it with their times.

M channels, F frames.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

LONGEST, LINE = 30.0, 6.0  # seconds: the longest drawn part of a recording, and the length of one line


class Word(NamedTuple):
    """A word, or a sentence if the model has no word times, from `start` to `end` in seconds."""

    start: float
    end: float
    text: str


class SpectrogramLine(NamedTuple):
    """A line of a picture, from `start` to `end` in seconds, with all words that overlap it."""

    start: float
    end: float
    power: Tensor  # (M, F)
    words: list[Word]


@dataclasses.dataclass(frozen=True)
class Sound:
    """The spectrogram of a recording, and a function that transcribes it on demand."""

    power: Tensor  # (M, F)
    step: float  # seconds per frame
    high: float  # value of the last channel, in `unit`
    unit: str
    hear: Callable[[], Iterable[Mapping[str, Any]]]  # returns {start, end, text} of each word

    @functools.cached_property
    def words(self) -> list[Word]:
        spoken = [Word(each["start"], each["end"], each["text"]) for each in self.hear() if each["text"].strip()]
        if not spoken:
            raise ValueError("the model transcribed no words in this recording, so there are none to show")
        return spoken

    @property
    def seconds(self) -> float:
        return self.power.shape[1] * self.step

    @property
    def about(self) -> str:
        cut = f"the first {LONGEST:g} of {self.seconds:.1f} seconds" if self.seconds > LONGEST else "the recording"
        return f"{cut}, and the words with their times"

    def lines(self) -> list[SpectrogramLine]:
        shown = min(self.seconds, LONGEST)
        number = max(1, math.ceil(shown / LINE - 1e-6))
        length = shown / number
        lines = []
        for i in range(number):
            start, end = i * length, (i + 1) * length
            frames = slice(round(start / self.step), round(end / self.step))
            start, end = frames.start * self.step, frames.stop * self.step
            words = [word for word in self.words if word.start < end and (word.start >= start or word.end > start)]
            lines.append(SpectrogramLine(start, end, self.power[:, frames], words))
        return lines
