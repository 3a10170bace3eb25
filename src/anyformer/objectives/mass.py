"""MASS [Song et al. 2019]: mask a fragment of the encoder's text; the decoder, which sees nothing else, writes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from anyformer.inputs.long import LongText
from anyformer.objectives.batches import Batch, Record, pad_rows
from anyformer.objectives.examples import add_ends, append_end, array
from anyformer.objectives.rewrite import Rewrite
from anyformer.objectives.vocabulary_info import VocabularyInfo, VocabularyObjective, mask_token


class MASS(Rewrite, VocabularyObjective):
    """Mask a fragment of `rate` of a row's tokens, as `Masked` does: 80 % of it (`mask`) become the mask token, 10 %
    (`random`) a random token, and the rest stay. The decoder reads only the fragment, shifted right behind a mask
    token, at its original positions."""

    packs: ClassVar[bool] = True

    rate: float = 0.5
    mask: float = 0.8
    random: float = 0.1

    def check(self) -> None:
        super().check()
        if not 0 < self.rate <= 1 or min(self.mask, self.random) < 0 or self.mask + self.random > 1 + 1e-9:
            raise ValueError(f"MASS: rate {self.rate}, mask {self.mask}, random {self.random} must be fractions")

    def needs(self, known: VocabularyInfo) -> None:
        mask_token(known, "MASS")

    def ids(self, text: str | LongText, tokenizer: Any) -> Iterator[list[int]]:
        return append_end(tokenizer.pieces(text), tokenizer)

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        ids, mask = record["input_ids"], mask_token(self.words, "MASS")
        size = max(1, round(len(ids) * self.rate))
        start = int(random.integers(len(ids) - size + 1))
        fragment = ids[start : start + size]
        draws, random_ids = random.random(size), random.integers(self.words.size, size=size)
        source = ids.copy()
        source[start : start + size] = np.where(
            draws < self.mask, mask, np.where(draws < self.mask + self.random, random_ids, fragment)
        )
        return {
            "input_ids": array(source),
            "labels": array(fragment),
            "decoder_input_ids": add_ends(mask, fragment[:-1], None),
            "decoder_position_ids": array(np.arange(start, start + size)),
        }

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        batch = super().collate(records, pad)
        for name, fill in (("decoder_input_ids", pad), ("decoder_position_ids", 0)):
            batch[name] = pad_rows([record[name] for record in records], fill)
        return batch
