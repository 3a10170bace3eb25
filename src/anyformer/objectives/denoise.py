"""BART's noise functions [Lewis et al. 2020]: corrupt a text with up to five of them, in order, and reconstruct it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from anyformer.inputs.long import LongText
from anyformer.objectives.batches import Record
from anyformer.objectives.examples import add_ends
from anyformer.objectives.rewrite import Rewrite
from anyformer.objectives.vocabulary_info import VocabularyInfo, VocabularyObjective, is_one_of, mask_token
from anyformer.specs.field_types import Fraction, OneOrMore
from anyformer.specs.part import Part


class Noise(Part, abstract=True):
    """Corrupts token ids (T,) without begin and end tokens. `rate`: the fraction of the text, or of the texts."""

    rate: Fraction

    def damage(self, ids: np.ndarray, random: np.random.Generator, known: VocabularyInfo) -> np.ndarray:
        raise NotImplementedError

    def some(self, size: int, random: np.random.Generator) -> np.ndarray:
        """Draw a fraction `rate` (rounded up) of the indices below `size`."""
        return random.permutation(size)[: math.ceil(size * self.rate)]


class TokenMasking(Noise):
    """Replace tokens with the mask token."""

    rate: Fraction = 0.15

    def damage(self, ids: np.ndarray, random: np.random.Generator, known: VocabularyInfo) -> np.ndarray:
        ids = ids.copy()
        ids[self.some(len(ids), random)] = mask_token(known, "token masking")
        return ids


class TokenDeletion(Noise):
    """Delete tokens and do not mark where they were."""

    rate: Fraction = 0.15

    def damage(self, ids: np.ndarray, random: np.random.Generator, known: VocabularyInfo) -> np.ndarray:
        return np.delete(ids, self.some(len(ids), random))


class TextInfilling(Noise):
    """Replace each span with one mask token; the spans contain `rate` of all tokens. Their lengths are drawn from a
    Poisson distribution with this `mean`; a span of length 0 inserts a mask token."""

    rate: Fraction = 0.3
    mean: OneOrMore = 3.0

    def damage(self, ids: np.ndarray, random: np.random.Generator, known: VocabularyInfo) -> np.ndarray:
        lengths = self.lengths(math.ceil(len(ids) * self.rate), random)
        kept = len(ids) - int(lengths.sum())
        # one slot per kept token or span; a random choice of slots are spans, so spans never overlap
        spans = np.zeros(kept + len(lengths), bool)
        spans[random.permutation(len(spans))[: len(lengths)]] = True
        sizes = np.ones(len(spans), np.int64)
        sizes[spans] = lengths
        first = np.minimum(np.cumsum(sizes) - sizes, max(len(ids) - 1, 0))
        if not len(ids):
            return ids
        return np.where(spans, mask_token(known, "text infilling"), ids[first])

    def lengths(self, number: int, random: np.random.Generator) -> np.ndarray:
        """Draw the lengths of spans with `number` tokens in total; the last span is shortened to fit."""
        lengths = np.zeros(0, np.int64)
        while lengths.sum() < number:
            lengths = np.concatenate([lengths, random.poisson(self.mean, size=number)])
        ends = np.cumsum(lengths)
        last = int(np.searchsorted(ends, number))
        lengths[last : last + 1] -= ends[last : last + 1] - number
        return lengths[: last + 1]


class SentencePermutation(Noise):
    """Split the text at full stops and permute `rate` of the sentences."""

    rate: Fraction = 1.0

    def damage(self, ids: np.ndarray, random: np.random.Generator, known: VocabularyInfo) -> np.ndarray:
        stop = is_one_of(ids, known.stops)
        ends = np.flatnonzero(stop[:-1] & ~stop[1:]) + 1  # "..." ends one sentence
        sentences = np.split(ids, ends)
        moved = self.some(len(sentences), random)
        order = np.arange(len(sentences))
        order[moved] = random.permutation(moved)
        return np.concatenate([sentences[i] for i in order])


class DocumentRotation(Noise):
    """Rotate `rate` of the texts, so that they begin at a random token."""

    rate: Fraction = 1.0

    def damage(self, ids: np.ndarray, random: np.random.Generator, known: VocabularyInfo) -> np.ndarray:
        if len(ids) < 2 or random.random() >= self.rate:
            return ids
        return np.roll(ids, -int(random.integers(len(ids))))


class Denoise(Rewrite, VocabularyObjective):
    """Apply `noises` in order and reconstruct the text. Default as in BART: permute all sentences, then infill 30 %."""

    packs: ClassVar[bool] = True

    noises: tuple[Noise, ...] = (SentencePermutation(), TextInfilling())

    def check(self) -> None:
        super().check()
        if not self.noises:
            raise ValueError("Denoise.noises is empty")

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
