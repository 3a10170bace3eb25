"""The base class of encoder-decoder objectives: read one text and write another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from torch import Tensor, nn

from anyformer.kernels.loss import IGNORED
from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record, pad_rows, pad_texts
from anyformer.objectives.heads import language_head
from anyformer.objectives.objective import PERPLEXITY, HeadInputs, Objective
from anyformer.specs.field_types import Chance


class Rewrite(Objective, abstract=True):
    """Records have "input_ids" and "labels". The decoder reads the model's start token, followed by the labels shifted
    right. `smoothing` is the share of each target that is spread over the vocabulary [Szegedy et al. 2016]."""

    loss_metrics: ClassVar[tuple[str, ...]] = PERPLEXITY

    smoothing: Chance = 0.0

    @property
    def plain(self) -> Self:
        return self.replace(smoothing=0.0) if self.smoothing else self

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        return {**pad_texts(records, pad), "labels": pad_rows([record["labels"] for record in records], IGNORED)}

    def module(self, model: TransformerModule) -> nn.Module:
        if not model.spec.pair:
            raise ValueError(f"{type(self).__name__} reads one text and writes another: it needs an encoder-decoder")
        language_head(model)
        return model

    def judge(self, model: TransformerModule, batch: Batch, states: HeadInputs) -> dict[str, Tensor]:
        return {"loss": language_head(model).loss(states.x, states.ctx, batch["labels"], self.smoothing).sum}
