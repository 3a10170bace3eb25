"""Facts about a vocabulary that objectives need, as plain numbers that can be pickled with them."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from anyformer.objectives.objective import Objective
from anyformer.specs.part import Part

SENTINEL = "<extra_id_{}>"  # T5's names


class VocabularyInfo(Part):
    """Special tokens and size of a vocabulary."""

    size: int  # ids go up to this
    mask: int | None = None
    begin: int | None = None  # what a text starts with
    end: int | None = None
    separator: int | None = None
    apart: tuple[int, ...] = ()  # tokens that are no text (begin, end, separators, padding, mask): never masked
    stops: tuple[int, ...] = ()  # full stops
    sentinels: tuple[int, ...] = ()  # <extra_id_0>, <extra_id_1>, ...

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> VocabularyInfo:
        t = tokenizer
        named = (t.bos_token_id, t.eos_token_id, t.cls_token_id, t.sep_token_id, t.pad_token_id, t.mask_token_id)
        sentinels: list[int] = []
        while (place := t.id(SENTINEL.format(len(sentinels)))) is not None:
            sentinels.append(place)
        stops = (t.id(mark + ".") for mark in ("", "##", "\u0120", "\u2581"))  # as vocabularies write word boundaries
        return cls(
            size=len(t),
            mask=t.mask_token_id,
            begin=t.cls_token_id if t.bos_token_id is None else t.bos_token_id,
            end=t.sep_token_id if t.eos_token_id is None else t.eos_token_id,
            separator=t.sep_token_id,
            apart=tuple(sorted({place for place in named if place is not None})),
            stops=tuple(place for place in stops if place is not None),
            sentinels=tuple(sentinels),
        )


class VocabularyObjective(Objective):
    """An objective that needs the vocabulary; `known` is filled in by `ready`."""

    known: VocabularyInfo | None = None

    def ready(self, tokenizer: Any) -> Self:
        known = VocabularyInfo.from_tokenizer(tokenizer)
        self.needs(known)
        return self.replace(known=known)

    def needs(self, known: VocabularyInfo) -> None:
        """ValueError where the vocabulary has not what this takes."""

    @property
    def words(self) -> VocabularyInfo:
        if self.known is None:
            raise ValueError(f"{type(self).__name__} needs the tokenizer; call objective.ready(tokenizer) first")
        return self.known


def is_one_of(ids: np.ndarray, tokens: tuple[int, ...]) -> np.ndarray:
    """(T,) True where a token is one of a few; np.isin takes twenty times as long."""
    return np.logical_or.reduce([ids == token for token in tokens]) if tokens else np.zeros(len(ids), bool)


def mask_token(known: VocabularyInfo, what: str) -> int:
    if known.mask is None:
        raise ValueError(f"{what} needs a tokenizer with a mask token; this one has none")
    return known.mask
