"""Evaluate a model on a split of data: the loss of the objective and the published metrics of the task.

The trainer runs it during training (`evaluate.metrics`), `anyformer eval` afterwards.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.data import DataSplit, Source, StepBatches
from anyformer.data.encode import encode_row
from anyformer.models import TransformerModule, position_limit
from anyformer.objectives import metrics
from anyformer.objectives.batches import Record
from anyformer.objectives.objective import LOSS_METRICS, Example, Objective, Predictions, Predictor


def mean_losses(
    call: Callable[[Any, dict[str, Tensor]], dict[str, Tensor]],
    objective: Objective,
    batches: Iterable[StepBatches],
    device: torch.device,
    most: int | None = None,
    summed: Callable[[Tensor], Tensor] = lambda own: own,
) -> dict[str, float]:
    """Return the mean of each loss term over the batches (at most `most`). call(batch, divisors) returns sums; `summed`
    adds them and their weights over processes."""
    sums: dict[str, Any] = {}
    counts: dict[str, float] = {}
    ones: dict[str, Tensor] = {}
    for number, ready in enumerate(batches):
        if most is not None and number >= most:
            break
        for batch, real in zip(ready.batches, ready.real, strict=True):
            for name, weight in objective.weights(batch).items():
                counts[name] = counts.get(name, 0.0) + weight * real
                ones.setdefault(name, torch.ones((), device=device))
            moved = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
            for name, value in call(moved, ones).items():
                sums[name] = sums.get(name, 0.0) + value.double() * float(real)
    if not sums:
        raise ValueError("the validation data has no batch")
    both = torch.tensor([[float(sums[name]), counts[name]] for name in sums], dtype=torch.float64).to(device)
    return {name: total / max(count, 1.0) for name, (total, count) in zip(sums, summed(both).tolist())}


class Evaluation:
    """Computes the metrics `names` on one source, for at most `most` examples. `split` has its prepared records."""

    def __init__(
        self,
        source: Source,
        objective: Objective,
        tokenizer: Any,
        names: Sequence[str] | None = None,
        *,
        split: DataSplit | None = None,
        most: int | None = None,
        skip: bool = False,
    ) -> None:
        self.source, self.tokenizer, self.split, self.most, self.skip = source, tokenizer, split, most, skip
        self.task = objective.task
        self.metrics = self.task.metrics
        usual = (*(self.metrics.usual if self.metrics else ()), *self.task.loss_metrics)
        self.names = usual if names is None else tuple(names)
        check(self.task, self.names)
        self.left_out: list[str] = []
        self.places: list[str] = []  # "file:line" of each example
        self.answered: Predictions | None = None  # predictions of the last call

    @functools.cached_property
    def examples(self) -> tuple[list[Example], list[list[Record]]]:
        """All examples, and the records that the objective makes of each."""
        examples, records = [], []
        self.places = []
        for row in self.source.rows(self.task.columns):
            encoded = encode_row(row, self.task, self.tokenizer)
            if encoded.problem and not encoded.unread and not self.skip:
                raise ValueError(f"{encoded.place}: {encoded.problem}; data.unfit='skip' leaves such rows out")
            if encoded.problem:
                self.left_out.append(f"{encoded.place}: {encoded.problem}")
                continue
            examples.append(row.example or {})
            self.places.append(row.place)
            records.append(encoded.records)
            if len(examples) == self.most:
                break
        if not examples:
            first = f"; the first: {self.left_out[0]}" if self.left_out else ""
            raise ValueError(f"the data has no example: {len(self.left_out):,} rows cannot be used{first}")
        return examples, records

    @functools.cached_property
    def tokens_per_byte(self) -> float:
        """Tokens per byte of the predicted texts."""
        if not self.task.packs:
            examples, records = self.examples
            tokens = sum(record["labels"].size for own in records for record in own)
            return tokens / sum(map(self.task.target_bytes, examples))
        assert self.split is not None
        rows = self.source.rows(self.task.columns)
        return self.split.tokens / sum(self.task.target_bytes(row.example) for row in rows if row.example is not None)

    def __call__(self, job: Predictor, mean_loss: Callable[[Objective], float]) -> dict[str, float]:
        """Return the metrics. `mean_loss(objective)` returns the loss of an objective on this split."""
        scores = {}
        if any(name not in LOSS_METRICS for name in self.names):
            scores = self.score(self.ask(job))
        if any(name in LOSS_METRICS for name in self.names):
            loss = mean_loss(self.task.plain)
            scores["perplexity"] = math.exp(min(loss, 700.0))
            if "bits_per_byte" in self.names:
                scores["bits_per_byte"] = loss * self.tokens_per_byte / math.log(2)
        return {name: scores[name] for name in self.names}

    def ask(self, job: Predictor) -> Predictions:
        """Return the model's predictions for all examples."""
        examples, records = self.examples
        check_lengths(job.model, self.task, records)
        self.answered = self.task.predict(job, examples, records)
        return self.answered

    def score(self, answered: Predictions) -> dict[str, float]:
        """Return the metrics of predictions."""
        known = self.metrics.functions if self.metrics else {}
        return {name: known[name](answered.predicted, answered.wanted) for name in self.names if name in known}


def check(objective: Objective, names: Sequence[str]) -> None:
    """Raise ValueError if the objective lacks these metrics or a library is missing, before any work."""
    metrics.check(names, objective.task.metrics, objective.task.loss_metrics)


def check_lengths(model: TransformerModule, task: Objective, records: Sequence[Sequence[Record]]) -> None:
    limit, longest = position_limit(model.spec), max(task.size(record) for own in records for record in own)
    if limit is not None and longest > limit:
        raise ValueError(f"an example has {longest:,} tokens, and this model takes at most {limit:,}")
