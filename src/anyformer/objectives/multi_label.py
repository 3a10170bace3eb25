"""Predict which of several labels apply to a text: any number of them, also none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from anyformer.objectives.batches import Batch, Record, pad_rows, pad_texts
from anyformer.objectives.classify import Classify
from anyformer.objectives.examples import column_name, encode_pair, field, label_number, text_of
from anyformer.objectives.metrics import LABEL_SETS, Metrics
from anyformer.objectives.objective import Baseline, Example, Predictions, Predictor
from anyformer.parts.head.losses import Problem
from anyformer.specs.field_types import Chance
from anyformer.specs.messages import quote


class MultiLabel(Classify, called=("multi-label classification", "tagging of texts")):
    """Columns "text", "label" and, with `pair`, "pair". The label is a list of names, or one text with `separator`
    between the names; it may be empty. A label is predicted if its probability is at least `threshold`."""

    metrics: ClassVar[Metrics] = LABEL_SETS
    baseline: ClassVar[Baseline | None] = None

    separator: str = ","
    threshold: Chance = 0.5

    def check(self) -> None:
        super().check()
        if not self.labels:
            raise ValueError("MultiLabel.labels: at least two are needed")
        if self.class_weights or self.balanced:
            raise ValueError("MultiLabel: class weights apply to a single label; leave them out")
        if not self.separator:
            raise ValueError("MultiLabel.separator is empty")

    @property
    def problem(self) -> Problem:
        return "multi_label_classification"

    def names(self, example: Mapping[str, Any]) -> list[Any]:
        return split_labels(field(example, "label"), self.separator)

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        pair = text_of(example, "pair") if self.pair else None
        record = encode_pair(tokenizer, text_of(example, "text"), pair, self.length)
        column = column_name(example, "label")
        given = [label_number(name, self.labels, column) for name in self.names(example)]
        if len(set(given)) < len(given):
            raise ValueError(f"column {quote(column)}: a label is repeated")
        labels = np.zeros(len(self.labels), np.float32)
        labels[given] = 1
        return {**record, "labels": labels}

    def size(self, record: Record) -> int:
        return len(record["input_ids"])

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        return {**pad_texts(records, pad), "labels": pad_rows([record["labels"] for record in records], 0.0)}

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(batch["labels"].numel())}

    def predict(self, job: Predictor, examples: Sequence[Example], records: Sequence[list[Record]]) -> Predictions:
        rows = [record for (record,) in records]
        probabilities = [logits.float().sigmoid().numpy() for logits in job.logits(self, rows)]
        chosen = [each >= self.threshold for each in probabilities]
        right = [record["labels"] > 0 for record in rows]
        sure = [float(np.where(own, p, 1 - p).prod()) for own, p in zip(chosen, probabilities, strict=True)]
        return Predictions([*map(self.chosen_names, chosen)], [*map(self.chosen_names, right)], sure)

    def chosen_names(self, chosen: np.ndarray) -> list[str]:
        return [label for label, is_chosen in zip(self.labels, chosen, strict=True) if is_chosen]


def split_labels(value: Any, separator: str) -> list[Any]:
    """Return the labels of a cell: a list, or names with a separator between them."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(separator) if name.strip()]
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
