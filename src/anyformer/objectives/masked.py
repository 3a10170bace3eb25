"""Masked language modelling [Devlin et al. 2019]: predict masked tokens from the tokens on both sides."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.inputs.long import LongText
from anyformer.kernels.loss import IGNORED
from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record, pad_rows, pad_texts
from anyformer.objectives.examples import array, text_of
from anyformer.objectives.heads import language_head
from anyformer.objectives.objective import PERPLEXITY, HeadInputs
from anyformer.objectives.vocabulary_info import VocabularyInfo, VocabularyObjective, is_one_of, mask_token
from anyformer.specs.field_types import Chance, Count, NonNegative, Range


class Masked(VocabularyObjective, called=("MLM", "masked language modelling", "masked language modeling", "cloze")):
    """`rate` of the tokens are chosen: 80 % of them become the mask token, 10 % a random token, and 10 % do not change.

    Texts are packed into rows and get new masks each time [Liu et al. 2019]. If `length` is set, texts are split into
    pieces of `length` tokens instead. Then `copies` fixes that many maskings per piece (BERT used 10 in its static
    masking), and `whole_words` masks all tokens of a word or none.
    """

    command: ClassVar[str] = "run fill-mask RUN TEXT"
    loss_metrics: ClassVar[tuple[str, ...]] = PERPLEXITY

    rate: Chance = 0.15
    mask: NonNegative = 0.8
    random: NonNegative = 0.1
    length: Annotated[int, Range(at_least=3)] | None = None
    copies: Count | None = None
    whole_words: bool = False

    def check(self) -> None:
        if self.mask + self.random > 1 + 1e-9:
            raise ValueError(f"{type(self).__name__}: mask {self.mask} plus random {self.random} is more than 1")
        if self.length is None and (self.copies or self.whole_words):
            raise ValueError(f"{type(self).__name__}: copies and whole_words need a length: packed rows have no words")

    @property
    def packs(self) -> bool:
        return self.length is None

    def with_max_length(self, length: int) -> Self:
        return self if self.length is None else self.replace(length=min(self.length, length))

    def needs(self, known: VocabularyInfo) -> None:
        mask_token(known, "masking")

    def ids(self, text: str | LongText, tokenizer: Any) -> Iterator[list[int]]:
        return tokenizer.pieces(text)

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record | list[Record]:
        if self.length is None:
            return super().encode(example, tokenizer)
        encoding = tokenizer._encode(text_of(example, "text"), None, None, False)
        room = self.length - tokenizer.core.num_special_tokens_to_add(False)
        if not encoding.ids:
            raise ValueError("the text has no tokens")
        encoding.truncate(room, stride=0)
        pieces = [tokenizer.core.post_process(piece) for piece in (encoding, *encoding.overflowing)]
        return [self._piece(tokenizer, piece) for piece in pieces]

    def _piece(self, tokenizer: Any, piece: Any) -> Record:
        record = {"input_ids": array(tokenizer._ids(piece))}
        if self.whole_words:
            record["word_ids"] = array([-1 if word is None else word for word in piece.word_ids])
        return record

    # -- masking

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        ids = record["input_ids"]
        if self.copies:  # the masking depends only on the text and the copy
            key = zlib.crc32(ids.astype(np.int64).tobytes()), int(random.integers(self.copies))
            random = np.random.Generator(np.random.Philox(key=key[0] << 32 | key[1]))
        chosen = self.choose(ids, record.get("word_ids"), random)
        return {**record, "input_ids": self.hide(ids, chosen, random), "places": chosen, "labels": array(ids[chosen])}

    def choose(self, ids: np.ndarray, word_ids: np.ndarray | None, random: np.random.Generator) -> np.ndarray:
        """Return sorted indices (M,). M is `rate` of all tokens, but special tokens are never chosen."""
        number = max(1, round(len(ids) * self.rate))
        candidates = np.flatnonzero(~is_one_of(ids, self.words.apart))
        if word_ids is None:
            return np.sort(random.permutation(candidates)[:number])
        groups: dict[int, list[int]] = {}
        for i in candidates.tolist():
            groups.setdefault(int(word_ids[i]), []).append(i)
        chosen: list[int] = []
        words = list(groups.values())
        for i in random.permutation(len(words)).tolist():
            if len(chosen) + len(words[i]) <= number:  # skip words that are too long for the rest
                chosen += words[i]
        return np.array(sorted(chosen), np.int64)

    def hide(self, ids: np.ndarray, chosen: np.ndarray, random: np.random.Generator) -> np.ndarray:
        mask = mask_token(self.words, "masking")
        draws, random_ids = random.random(len(chosen)), random.integers(self.words.size, size=len(chosen))
        hidden = np.where(draws < self.mask, mask, np.where(draws < self.mask + self.random, random_ids, ids[chosen]))
        ids = ids.copy()
        ids[chosen] = hidden
        return ids

    # -- the model

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        batch = pad_texts(records, pad)
        if "document_ids" in records[0]:
            batch["document_ids"] = pad_rows([record["document_ids"] for record in records], 0)
        return {**batch, **flatten_labels(records, batch["input_ids"].shape[1])}

    def module(self, model: TransformerModule) -> nn.Module:
        if language_head(model).part.shift:
            raise ValueError("masked tokens need a model that sees both sides; this one predicts the next token")
        return model

    def judge(self, model: TransformerModule, batch: Batch, states: HeadInputs) -> dict[str, Tensor]:
        return {"loss": masked_loss(model, batch, states)}


def flatten_labels(records: Sequence[Record], width: int, multiple: int = 64) -> Batch:
    """Return "labels" (M,) and their "places" (M,), indices into the flattened batch (B * width). M is rounded up to a
    multiple, so that a compiled step sees few sizes; the additional labels are IGNORED."""
    places = np.concatenate([record["places"].astype(np.int64) + i * width for i, record in enumerate(records)])
    labels = np.concatenate([record["labels"].astype(np.int64) for record in records])
    extra = -len(labels) % multiple if len(labels) else multiple
    return {
        "places": torch.from_numpy(np.pad(places, (0, extra))),
        "labels": torch.from_numpy(np.pad(labels, (0, extra), constant_values=IGNORED)),
    }


def masked_loss(model: TransformerModule, batch: Batch, states: HeadInputs) -> Tensor:
    """Return the loss summed over masked tokens; scores of other tokens are not computed."""
    return language_head(model).loss(states.x.flatten(0, 1)[batch["places"]], states.ctx, batch["labels"]).sum
