"""The facts about a vocabulary that objectives need, as plain numbers that can be pickled."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from anyformer.objectives.objective import Objective
from anyformer.specs.part import Part

SENTINEL = "<extra_id_{}>"  # T5's names


class VocabularyInfo(Part):
    """The size and the special tokens of a vocabulary."""

    size: int  # number of ids
    mask: int | None = None
    begin: int | None = None  # first token of a text
    end: int | None = None
    separator: int | None = None
    apart: tuple[int, ...] = ()  # special tokens (begin, end, separator, padding, mask), which are never masked
    stops: tuple[int, ...] = ()  # full stops
    sentinels: tuple[int, ...] = ()  # <extra_id_0>, <extra_id_1>, ...

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> VocabularyInfo:
        t = tokenizer
        named = (t.bos_token_id, t.eos_token_id, t.cls_token_id, t.sep_token_id, t.pad_token_id, t.mask_token_id)
        sentinels: list[int] = []
        while (token := t.id(SENTINEL.format(len(sentinels)))) is not None:
            sentinels.append(token)
        stops = (t.id(mark + ".") for mark in ("", "##", "\u0120", "\u2581"))  # marks of word boundaries
        return cls(
            size=len(t),
            mask=t.mask_token_id,
            begin=t.cls_token_id if t.bos_token_id is None else t.bos_token_id,
            end=t.sep_token_id if t.eos_token_id is None else t.eos_token_id,
            separator=t.sep_token_id,
            apart=tuple(sorted({token for token in named if token is not None})),
            stops=tuple(token for token in stops if token is not None),
            sentinels=tuple(sentinels),
        )


class VocabularyObjective(Objective, abstract=True):
    """An objective that needs facts about the vocabulary; `ready` sets `known`."""

    known: VocabularyInfo | None = None

    def ready(self, tokenizer: Any) -> Self:
        known = VocabularyInfo.from_tokenizer(tokenizer)
        self.needs(known)
        return self.replace(known=known)

    def needs(self, known: VocabularyInfo) -> None:
        """Raise ValueError if the vocabulary lacks a token that this objective needs."""

    @property
    def words(self) -> VocabularyInfo:
        if self.known is None:
            raise ValueError(f"{type(self).__name__} needs the tokenizer; call objective.ready(tokenizer) first")
        return self.known


def is_one_of(ids: np.ndarray, tokens: tuple[int, ...]) -> np.ndarray:
    """(T,) True for ids that are in `tokens`; np.isin takes twenty times as long."""
    return np.logical_or.reduce([ids == token for token in tokens]) if tokens else np.zeros(len(ids), bool)


def mask_token(known: VocabularyInfo, what: str) -> int:
    if known.mask is None:
        raise ValueError(f"{what} needs a tokenizer with a mask token; this one has none")
    return known.mask
