"""Predict a label or a number for a sentence or a pair of sentences: GLUE's tasks [Wang et al. 2018]."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.models.base import TransformerModule
from anyformer.models.call import HeadInputs
from anyformer.objectives.batches import Batch, Record, pad_texts, scalars
from anyformer.objectives.class_weights import balanced_weights, check_class_weights, weights_in_batch
from anyformer.objectives.examples import column_name, encode_pair, field, label_of, text_of
from anyformer.objectives.heads import head_of, logits_of
from anyformer.objectives.metrics import LABELS, NUMBERS, TWO_LABELS, Metrics
from anyformer.objectives.objective import Baseline, Example, Objective, Predictions, Predictor
from anyformer.parts.head.classify import ClassifyModule
from anyformer.parts.head.losses import Problem
from anyformer.specs.messages import quote
from anyformer.specs.part import Table


class Classify(Objective):
    """Columns "text", "label" and, with `pair`, "pair". The label is one of `labels`, by name or index. If there are no
    `labels`, it is a number (STS-B: 0 to 5), optionally between `low` and `high`. Inputs are truncated to `length`
    tokens, the longer text of a pair first.

    With `class_weights`, the loss of an example is multiplied by the weight of its label, and the mean is divided by
    the sum of the weights. With `balanced`, the weights follow from the training data: all labels count equally."""

    command: ClassVar[str] = "run classify RUN TEXT"
    baseline: ClassVar[Baseline | None] = "labels"

    labels: tuple[str, ...] = ()
    pair: bool = False
    length: int | None = None
    low: float | None = None
    high: float | None = None
    class_weights: Mapping[str, float] = Table()  # label -> weight; default 1
    balanced: bool = False

    def check(self) -> None:
        if len(self.labels) == 1:
            raise ValueError(f"Classify.labels: at least two are needed, got {quote(self.labels[0])}")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("Classify.labels: a label is repeated")
        if self.labels and (self.low is not None or self.high is not None):
            raise ValueError("Classify: low and high are limits for numbers; they cannot be combined with labels")
        check_class_weights(self.class_weights, self.labels, self.balanced, type(self).__name__)

    @property
    def metrics(self) -> Metrics:
        return (TWO_LABELS if len(self.labels) == 2 else LABELS) if self.labels else NUMBERS

    @property
    def problem(self) -> Problem:
        return "single_label_classification" if self.labels else "regression"

    @property
    def plain(self) -> Self:
        return self.replace(class_weights={}, balanced=False)

    def with_class_counts(self, counts: Mapping[str, int]) -> Self:
        return self.replace(class_weights=balanced_weights(counts), balanced=False) if self.balanced else self

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
        labels = scalars(records, "label")
        weights = weights_in_batch(labels, self.class_weights, self.labels)
        return {**pad_texts(records, pad), "labels": labels, **weights}

    def module(self, model: TransformerModule) -> nn.Module:
        head = head_of(model, ClassifyModule, "classification")
        if head.num_labels != (len(self.labels) or 1):
            raise ValueError(f"{len(self.labels) or 1} labels in the objective, {head.num_labels} in the model")
        if head.problem not in (None, self.problem):
            raise ValueError(f"head.problem is {quote(head.problem)}, but the objective is {quote(self.problem)}")
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(batch["class_weight"].sum()) if self.class_weights else float(len(batch["labels"]))}

    def judge(self, model: TransformerModule, batch: Batch, states: HeadInputs) -> dict[str, Tensor]:
        if not self.class_weights:
            return super().judge(model, batch, states)
        loss = F.cross_entropy(logits_of(model, states).float(), batch["labels"], reduction="none")
        return {"loss": (loss * batch["class_weight"]).sum()}

    def predict(self, job: Predictor, examples: Sequence[Example], records: Sequence[list[Record]]) -> Predictions:
        if self.labels:
            return job.labels(self, records)
        rows = [record for (record,) in records]
        predicted = [float(value) for value in job.logits(self, rows)]
        return Predictions(predicted, [float(record["label"]) for record in rows])
