"""Predict a label or a number for a sentence or a pair of sentences: GLUE's tasks [Wang et al. 2018]."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import nn

from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record, pad_texts, scalars
from anyformer.objectives.examples import column_name, encode_pair, field, label_of, text_of
from anyformer.objectives.heads import head_of
from anyformer.objectives.metrics import LABELS, NUMBERS, TWO_LABELS, Metrics
from anyformer.objectives.objective import Baseline, Example, Objective, Predictions, Predictor
from anyformer.parts.head.classify import ClassifyModule
from anyformer.specs.messages import quote


class Classify(Objective):
    """Columns "text", "label" and, with `pair`, "pair". The label is one of `labels`, by name or index. If there are no
    `labels`, it is a number (STS-B: 0 to 5), optionally between `low` and `high`. Inputs are truncated to `length`
    tokens, the longer text of a pair first."""

    command: ClassVar[str] = "run classify RUN TEXT"
    baseline: ClassVar[Baseline] = "labels"

    labels: tuple[str, ...] = ()
    pair: bool = False
    length: int | None = None
    low: float | None = None
    high: float | None = None

    def check(self) -> None:
        if len(self.labels) == 1:
            raise ValueError(f"Classify.labels: at least two are needed, got {quote(self.labels[0])}")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("Classify.labels: a label is repeated")
        if self.labels and (self.low is not None or self.high is not None):
            raise ValueError("Classify: low and high are limits for numbers; they cannot be combined with labels")

    @property
    def metrics(self) -> Metrics:
        return (TWO_LABELS if len(self.labels) == 2 else LABELS) if self.labels else NUMBERS

    @property
    def truncates(self) -> int | None:
        return self.length

    @property
    def columns(self) -> tuple[str, ...]:
        return ("text", "pair", "label") if self.pair else ("text", "label")

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        pair = text_of(example, "pair") if self.pair else None
        record = encode_pair(tokenizer, text_of(example, "text"), pair, self.length)
        label = np.int64(label_of(example, "label", self.labels)) if self.labels else self.number(example)
        return {**record, "label": np.asarray(label)}

    def number(self, example: Mapping[str, Any]) -> np.float32:
        value = field(example, "label")
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"column {quote(column_name(example, 'label'))}: {quote(value)} is not a number") from None
        low, high = (-math.inf if self.low is None else self.low), (math.inf if self.high is None else self.high)
        if not (math.isfinite(number) and low <= number <= high):
            raise ValueError(f"column {column_name(example, 'label')!r}: {number} is outside {low} to {high}")
        return np.float32(number)

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        return {**pad_texts(records, pad), "labels": scalars(records, "label")}

    def module(self, model: TransformerModule) -> nn.Module:
        head = head_of(model, ClassifyModule, "classification")
        if head.num_labels != (len(self.labels) or 1):
            raise ValueError(f"{len(self.labels) or 1} labels in the objective, {head.num_labels} in the model")
        problem = "single_label_classification" if self.labels else "regression"
        if head.problem not in (None, problem):
            raise ValueError(f"head.problem is {quote(head.problem)}, but the objective is {quote(problem)}")
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(len(batch["labels"]))}

    def predict(self, job: Predictor, examples: Sequence[Example], records: Sequence[list[Record]]) -> Predictions:
        if self.labels:
            return job.labels(self, records)
        rows = [record for (record,) in records]
        predicted = [float(value) for value in job.logits(self, rows)]
        return Predictions(predicted, [float(record["label"]) for record in rows])
