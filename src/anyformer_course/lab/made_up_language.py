"""A made-up language that a small model learns within minutes: it has only spelling, grammar and topics."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np

LETTERS = "abcdefghijklmnop"


@dataclasses.dataclass(frozen=True)
class Language:
    """Every topic has its own words of every kind (word class). A word of one kind is followed by a word of the next
    kind or of the kind after that. The words depend only on these fields."""

    words: int = 12  # words per kind and topic
    kinds: int = 4
    topics: int = 1
    length: tuple[int, int] = (4, 7)  # minimum and maximum number of words per sentence

    @cached_property
    def lexicon(self) -> list[list[list[str]]]:
        """[topic][kind] -> distinct words of 2 to 6 letters."""
        draw, seen = np.random.default_rng(0), dict[str, None]()
        while len(seen) < self.topics * self.kinds * self.words:
            seen["".join(draw.choice(list(LETTERS), int(draw.integers(2, 7))))] = None
        every = iter(seen)
        return [[[next(every) for _ in range(self.words)] for _ in range(self.kinds)] for _ in range(self.topics)]

    @property
    def size(self) -> int:
        """The number of words, including the full stop."""
        return self.topics * self.kinds * self.words + 1

    def sentence(self, draw: np.random.Generator, topic: int) -> list[tuple[str, int]]:
        """Return words and their kinds."""
        kind, pairs = int(draw.integers(self.kinds)), []
        for _ in range(int(draw.integers(self.length[0], self.length[1] + 1))):
            pairs.append((self.lexicon[topic][kind][int(draw.integers(self.words))], kind))
            kind = (kind + 1 + int(draw.integers(2))) % self.kinds
        return pairs

    def text(self, draw: np.random.Generator, sentences: int, topic: int | None = None) -> list[str]:
        """Return sentences of one topic (default: a random topic)."""
        topic = int(draw.integers(self.topics)) if topic is None else topic
        return [" ".join(word for word, _ in self.sentence(draw, topic)) + " ." for _ in range(sentences)]

    def texts(self, number: int, sentences: int, seed: int) -> list[str]:
        """Return `number` texts of one line each."""
        draw = np.random.default_rng(seed)
        return [" ".join(self.text(draw, sentences)) for _ in range(number)]
