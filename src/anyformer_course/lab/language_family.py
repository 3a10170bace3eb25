"""A family of made-up languages with the same meanings: every language has its own words and its own word order.

Real parallel data of many languages are too few for a training from scratch (TICO-19 has 2,692 sentences), and between
made-up languages every translation is known to be right or wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

LETTERS = "abcdefghijklmnop"
ENGLISH = 0  # the language in the middle of an English-centric model
ORDERS: tuple[Callable[[list[int]], list[int]], ...] = (
    lambda meaning: meaning,
    lambda meaning: meaning[::-1],
    lambda meaning: meaning[1:] + meaning[:1],
    lambda meaning: meaning[::2] + meaning[1::2],
    lambda meaning: meaning[len(meaning) // 2 :] + meaning[: len(meaning) // 2],
    lambda meaning: [each for i in range(0, len(meaning), 2) for each in meaning[i : i + 2][::-1]],
)


@dataclasses.dataclass(frozen=True)
class LanguageFamily:
    """A meaning is a list of concepts. A language writes one word per concept, in its own order. English has one word
    for both concepts of the first `merged` pairs of concepts, so it cannot express their difference."""

    languages: int = 6
    concepts: int = 100
    merged: int = 0
    length: tuple[int, int] = (4, 8)  # minimum and maximum number of words

    @cached_property
    def words(self) -> list[list[str]]:
        """[language][concept] -> word; a word belongs to one language."""
        draw, seen = np.random.default_rng(0), dict[str, None]()
        while len(seen) < self.languages * self.concepts:
            seen["".join(draw.choice(list(LETTERS), int(draw.integers(3, 7))))] = None
        every = iter(seen)
        words = [[next(every) for _ in range(self.concepts)] for _ in range(self.languages)]
        for pair in range(self.merged):
            words[ENGLISH][2 * pair + 1] = words[ENGLISH][2 * pair]
        return words

    def draw_meaning(self, draw: np.random.Generator) -> list[int]:
        return draw.integers(self.concepts, size=int(draw.integers(self.length[0], self.length[1] + 1))).tolist()

    def sentence(self, meaning: list[int], language: int) -> str:
        return " ".join(self.words[language][concept] for concept in ORDERS[language](meaning))

    def directions(self, english: bool | None = None) -> list[tuple[int, int]]:
        """Return (source, target) pairs of languages: all, only those with English, or only those without it."""
        every = [(a, b) for a in range(self.languages) for b in range(self.languages) if a != b]
        return every if english is None else [pair for pair in every if (ENGLISH in pair) == english]

    def example(self, meaning: list[int], source: int, target: int) -> dict[str, str]:
        return {"source": ask(self.sentence(meaning, source), target), "target": self.sentence(meaning, target)}

    def examples(self, directions: Sequence[tuple[int, int]], number: int, seed: int) -> list[dict[str, str]]:
        """Return `number` examples with random meanings; every direction is as frequent."""
        draw = np.random.default_rng(seed)
        return [self.example(self.draw_meaning(draw), *directions[i % len(directions)]) for i in range(number)]


def ask(sentence: str, target: int) -> str:
    """Return the text that asks a model for a translation into `target`."""
    return f"<{target}> {sentence}"


def word_accuracy(written: str, wanted: str) -> float:
    """Return the share of places with the right word, of as many places as the longer sentence has."""
    ours, theirs = written.split(), wanted.split()
    return sum(a == b for a, b in zip(ours, theirs)) / max(len(ours), len(theirs))
