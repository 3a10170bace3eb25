"""A made-up language, which a small model learns within minutes: spelling, grammar and topics, and nothing else."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np

LETTERS = "abcdefghijklmnop"


@dataclasses.dataclass(frozen=True)
class Language:
    """Every topic has words of its own for every kind; a word of one kind is followed by one of the next kind or the
    one after it. The words are the same wherever the language is."""

    words: int = 12  # of each kind in each topic
    kinds: int = 4
    topics: int = 1
    length: tuple[int, int] = (4, 7)  # words of a sentence

    @cached_property
    def lexicon(self) -> list[list[list[str]]]:
        """[topic][kind] -> words of 2 to 6 letters, each of which is there once."""
        draw, seen = np.random.default_rng(0), dict[str, None]()
        while len(seen) < self.topics * self.kinds * self.words:
            seen["".join(draw.choice(list(LETTERS), int(draw.integers(2, 7))))] = None
        every = iter(seen)
        return [[[next(every) for _ in range(self.words)] for _ in range(self.kinds)] for _ in range(self.topics)]

    @property
    def size(self) -> int:
        """How many words there are, the full stop counted."""
        return self.topics * self.kinds * self.words + 1

    def sentence(self, draw: np.random.Generator, topic: int) -> list[tuple[str, int]]:
        """Words and their kinds."""
        kind, found = int(draw.integers(self.kinds)), []
        for _ in range(int(draw.integers(self.length[0], self.length[1] + 1))):
            found.append((self.lexicon[topic][kind][int(draw.integers(self.words))], kind))
            kind = (kind + 1 + int(draw.integers(2))) % self.kinds
        return found

    def text(self, draw: np.random.Generator, sentences: int, topic: int | None = None) -> list[str]:
        """Sentences of one topic."""
        topic = int(draw.integers(self.topics)) if topic is None else topic
        return [" ".join(word for word, _ in self.sentence(draw, topic)) + " ." for _ in range(sentences)]

    def texts(self, number: int, sentences: int, seed: int) -> list[str]:
        """So many, a line each."""
        draw = np.random.default_rng(seed)
        return [" ".join(self.text(draw, sentences)) for _ in range(number)]
