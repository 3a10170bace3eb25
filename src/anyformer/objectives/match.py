"""Image-text matching [Radford et al. 2021]: find the text of each image, and the image of each text, in a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from anyformer.inputs.truncation import count_truncated
from anyformer.models import TwoTowerModule
from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record, pad_texts
from anyformer.objectives.examples import encode_pair, field
from anyformer.objectives.heads import model_inputs
from anyformer.objectives.images import Pictures
from anyformer.specs.field_types import TwoOrMore


class Captioned(Pictures, abstract=True):
    """Columns "image" and "text", a text or a list of texts from which one is drawn each time. A text ends with the
    tokenizer's end token and is truncated to `length` tokens."""

    columns: ClassVar[tuple[str, ...]] = ("image", "text")
    texts: ClassVar[tuple[str, ...]] = ("text",)

    length: TwoOrMore = 77

    @property
    def truncates(self) -> int | None:
        return self.length

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        given = field(example, "text")
        texts = [given] if isinstance(given, str) else list(given)
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            raise ValueError("column 'text' must be a text or a list of texts, none of them empty")
        ids = [caption(text, tokenizer, self.length) for text in texts]
        lengths = np.asarray([len(each) for each in ids], np.int64)
        return {**super().encode(example, tokenizer), "input_ids": np.concatenate(ids), "lengths": lengths}

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        varied, ends = super().vary(record, random), record["lengths"].cumsum()
        which = int(random.integers(len(ends)))
        return {**varied, "input_ids": record["input_ids"][ends[which] - record["lengths"][which] : ends[which]]}


class MatchImage(Captioned):
    """Columns "image" and "text" (see `Captioned`). The negatives are the other examples of the same micro-batch on the
    same device, so a larger micro-batch teaches more."""

    command: ClassVar[str] = "run search-images RUN TEXT --folder FOLDER"

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        return {**super().collate(records, pad), **pad_texts(records, pad)}

    def module(self, model: TransformerModule) -> nn.Module:
        if not isinstance(model, TwoTowerModule) or model.head is None:
            raise ValueError("MatchImage needs a model with two towers and a SimilarityHead (CLIP)")
        self.check_embedding(model.spec.image.embedding)
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(len(batch["input_ids"]))}

    def losses(self, trained: TwoTowerModule, batch: Batch) -> dict[str, Tensor]:
        out = trained(**model_inputs(trained, batch))
        loss = trained.head.loss(out["logits_per_text"])
        # aux_loss (balance of experts) is a mean over the tokens of this pass: its weight is the number of pairs
        return {"loss": loss.sum + out["aux_loss"] * loss.weight if "aux_loss" in out else loss.sum}


def caption(text: str, tokenizer: Any, length: int | None = None) -> np.ndarray:
    """Return the token ids (T,) of a text, at most `length`, including the end token."""
    return truncate_with_end(encode_pair(tokenizer, text)["input_ids"], tokenizer.eos_token_id, length)


def truncate_with_end(ids: np.ndarray, end: int | None, length: int | None) -> np.ndarray:
    """Truncate ids to `length` tokens; the last one is `end`, unless it is None."""
    count_truncated(0 if length is None else len(ids) + (end is not None and ids[-1] != end) - length)
    if end is None or (ids[-1] == end and (length is None or len(ids) <= length)):
        return ids[:length]
    return np.append(ids if length is None else ids[: length - 1], end)
