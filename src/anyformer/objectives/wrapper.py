"""The base class of objectives that wrap another objective and use its data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import nn

from anyformer.inputs.long import LongText
from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record
from anyformer.objectives.objective import Objective


class ObjectiveWrapper(Objective):
    """An objective that changes or extends the loss of the objective `of`."""

    of: Objective

    @property
    def task(self) -> Objective:
        return self.of.task

    @property
    def columns(self) -> tuple[str, ...]:
        return self.of.columns

    @property
    def texts(self) -> tuple[str, ...]:
        return self.of.texts

    @property
    def problem(self) -> str | None:
        return self.of.problem

    @property
    def packs(self) -> bool:
        return self.of.packs

    @property
    def truncates(self) -> int | None:
        return self.of.truncates

    @property
    def partners(self) -> int:
        return self.of.partners

    def reads(self, length: int) -> int:
        return self.of.reads(length)

    def with_max_length(self, length: int) -> Self:
        return self.replace(of=self.of.with_max_length(length))

    def ready(self, tokenizer: Any) -> Self:
        return self.replace(of=self.of.ready(tokenizer))

    def with_class_counts(self, counts: Mapping[str, int]) -> Self:
        return self.replace(of=self.of.with_class_counts(counts))

    def tokenizer_settings(self, tokenizer: Any) -> dict[str, Any]:
        return self.of.tokenizer_settings(tokenizer)

    def write_settings(self, folder: Path) -> Path | None:
        return self.of.write_settings(folder)

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record | list[Record]:
        return self.of.encode(example, tokenizer)

    def ids(self, text: str | LongText, tokenizer: Any) -> Iterator[list[int]]:
        return self.of.ids(text, tokenizer)

    def size(self, record: Record) -> int:
        return self.of.size(record)

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        return self.of.vary(record, random, *partners)

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        return self.of.collate(records, pad)

    def module(self, model: TransformerModule) -> nn.Module:
        return self.of.module(model)

    def initialize(self, model: TransformerModule) -> None:
        self.of.initialize(model)

    def before_step(self, trained: Any, step: int) -> None:
        self.of.before_step(trained, step)
