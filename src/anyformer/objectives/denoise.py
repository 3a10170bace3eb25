"""BART's noises [Lewis et al. 2020]: a text is damaged in some of five ways, in order, and written as it was."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from anyformer.inputs.long import LongText
from anyformer.objectives.examples import add_ends
from anyformer.objectives.objective import Record
from anyformer.objectives.rewrite import Rewrite
from anyformer.objectives.vocabulary_info import VocabularyInfo, VocabularyObjective, is_one_of, mask_token
from anyformer.specs.checks import at_least
from anyformer.specs.part import Part


class Noise(Part):
    """Damages tokens (T,), begin and end not among them. `rate`: how much of the text, or how often."""

    rate: float

    def check(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ValueError(f"{type(self).__name__}.rate is {self.rate}; it must be in [0, 1]")

    def damage(self, ids: np.ndarray, random: np.random.Generator, known: VocabularyInfo) -> np.ndarray:
        raise NotImplementedError

    def some(self, size: int, random: np.random.Generator) -> np.ndarray:
        """`rate` of so many places, rounded up."""
        return random.permutation(size)[: math.ceil(size * self.rate)]


class TokenMasking(Noise):
    """Tokens become the mask token."""

    rate: float = 0.15

    def damage(self, ids: np.ndarray, random: np.random.Generator, known: VocabularyInfo) -> np.ndarray:
        ids = ids.copy()
        ids[self.some(len(ids), random)] = mask_token(known, "token masking")
        return ids


class TokenDeletion(Noise):
    """Tokens are gone, and where is not said."""

    rate: float = 0.15

    def damage(self, ids: np.ndarray, random: np.random.Generator, known: VocabularyInfo) -> np.ndarray:
        return np.delete(ids, self.some(len(ids), random))


class TextInfilling(Noise):
    """Spans become one mask token each, whatever their length, which is Poisson's; where it is 0, a mask is put in
    between. `rate` of all tokens go."""

    rate: float = 0.3
    mean: float = 3.0

    def check(self) -> None:
        super().check()
        at_least(self, 1, "mean")

    def damage(self, ids: np.ndarray, random: np.random.Generator, known: VocabularyInfo) -> np.ndarray:
        lengths = self.lengths(math.ceil(len(ids) * self.rate), random)
        kept = len(ids) - int(lengths.sum())
        # kept tokens and spans stand in a row of slots: which slots are spans is chance, so spans never overlap
        spans = np.zeros(kept + len(lengths), bool)
        spans[random.permutation(len(spans))[: len(lengths)]] = True
        sizes = np.ones(len(spans), np.int64)
        sizes[spans] = lengths
        first = np.minimum(np.cumsum(sizes) - sizes, max(len(ids) - 1, 0))
        if not len(ids):
            return ids
        return np.where(spans, mask_token(known, "text infilling"), ids[first])

    def lengths(self, number: int, random: np.random.Generator) -> np.ndarray:
        """Of spans that make up `number` tokens together, the last cut to fit."""
        lengths = np.zeros(0, np.int64)
        while lengths.sum() < number:
            lengths = np.concatenate([lengths, random.poisson(self.mean, size=number)])
        ends = np.cumsum(lengths)
        last = int(np.searchsorted(ends, number))
        lengths[last : last + 1] -= ends[last : last + 1] - number
        return lengths[: last + 1]


class SentencePermutation(Noise):
    """The text is divided at full stops, and `rate` of the sentences change places."""

    rate: float = 1.0

    def damage(self, ids: np.ndarray, random: np.random.Generator, known: VocabularyInfo) -> np.ndarray:
        stop = is_one_of(ids, known.stops)
        ends = np.flatnonzero(stop[:-1] & ~stop[1:]) + 1  # "..." ends one sentence
        sentences = np.split(ids, ends)
        moved = self.some(len(sentences), random)
        order = np.arange(len(sentences))
        order[moved] = random.permutation(moved)
        return np.concatenate([sentences[i] for i in order])


class DocumentRotation(Noise):
    """The text begins at any of its tokens, and what stood before comes last; `rate` of the texts."""

    rate: float = 1.0

    def damage(self, ids: np.ndarray, random: np.random.Generator, known: VocabularyInfo) -> np.ndarray:
        if len(ids) < 2 or random.random() >= self.rate:
            return ids
        return np.roll(ids, -int(random.integers(len(ids))))


class Denoise(Rewrite, VocabularyObjective):
    """The noises in order; BART's own are all sentences permuted, then 30 % infilled."""

    noises: tuple[Noise, ...] = (SentencePermutation(), TextInfilling())

    def check(self) -> None:
        super().check()
        if not self.noises:
            raise ValueError("Denoise.noises is empty")

    @property
    def packs(self) -> bool:
        return True

    def reads(self, length: int) -> int:
        return length - 2  # begin and end

    def needs(self, known: VocabularyInfo) -> None:
        if any(isinstance(noise, (TokenMasking, TextInfilling)) for noise in self.noises):
            mask_token(known, "this noise")
        if any(isinstance(noise, SentencePermutation) for noise in self.noises) and not known.stops:
            raise ValueError("sentence permutation needs a tokenizer with a full stop; this one has none")

    def ids(self, text: str | LongText, tokenizer: Any) -> Iterator[list[int]]:
        return tokenizer.pieces(text, add_special_tokens=False)

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        known, ids = self.words, record["input_ids"]
        noised = ids
        for noise in self.noises:
            noised = noise.damage(noised, random, known)
        return {name: add_ends(known.begin, row, known.end) for name, row in (("input_ids", noised), ("labels", ids))}
