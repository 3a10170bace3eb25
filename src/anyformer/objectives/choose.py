"""Multiple choice [Radford et al. 2018; Zellers et al. 2018]: score each choice together with the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import nn

from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record, pad_texts, scalars
from anyformer.objectives.examples import encode_pair, field, label_of, text_of
from anyformer.objectives.heads import head_of
from anyformer.objectives.metrics import LABELS, Metrics
from anyformer.objectives.objective import Example, Objective, Predictions, Predictor
from anyformer.parts.head.classify import MultipleChoiceModule
from anyformer.specs.field_types import TwoOrMore


class Choose(Objective):
    """Columns "text", "choices" (a list of `choices` texts) and "label", the index of the right choice."""

    metrics: ClassVar[Metrics] = LABELS
    columns: ClassVar[tuple[str, ...]] = ("text", "choices", "label")

    choices: TwoOrMore
    length: int | None = None

    @property
    def truncates(self) -> int | None:
        return self.length

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        text, choices = text_of(example, "text"), field(example, "choices")
        if not isinstance(choices, Sequence) or isinstance(choices, str) or len(choices) != self.choices:
            given = f"{len(choices)}" if isinstance(choices, Sequence) and not isinstance(choices, str) else "no list"
            raise ValueError(f"column 'choices': expected {self.choices} texts, got {given}")
        rows = [
            encode_pair(tokenizer, text, text_of({"choices": choice}, "choices"), self.length) for choice in choices
        ]
        label = label_of(example, "label", [str(i) for i in range(self.choices)])
        names = ("input_ids", "token_type_ids")
        return {
            **{name: np.concatenate([row[name] for row in rows]) for name in names},
            "sizes": np.array([len(row["input_ids"]) for row in rows], np.int32),
            "label": np.asarray(np.int64(label)),
        }

    def size(self, record: Record) -> int:
        return int(record["sizes"].max())

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        rows = []
        for record in records:
            cuts = np.cumsum(record["sizes"])[:-1]
            ids, segments = (np.split(record[name], cuts) for name in ("input_ids", "token_type_ids"))
            rows += [{"input_ids": a, "token_type_ids": b} for a, b in zip(ids, segments)]
        batch = {name: value.view(len(records), self.choices, -1) for name, value in pad_texts(rows, pad).items()}
        return {**batch, "labels": scalars(records, "label")}

    def module(self, model: TransformerModule) -> nn.Module:
        head_of(model, MultipleChoiceModule, "multiple choice")
        return model

    def predict(self, job: Predictor, examples: Sequence[Example], records: Sequence[list[Record]]) -> Predictions:
        return job.labels(self, records)
