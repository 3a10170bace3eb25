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
from anyformer.evaluate import metrics
from anyformer.evaluate.predict import Example, Predictions, Predictor, kind_of, predictions, task_of
from anyformer.models import TransformerModule, position_limit
from anyformer.objectives.causal import NextToken
from anyformer.objectives.classify import Classify
from anyformer.objectives.dialogue import Dialogue
from anyformer.objectives.examples import texts_of
from anyformer.objectives.images import ClassifyImage
from anyformer.objectives.masked import Masked
from anyformer.objectives.objective import Objective, Record
from anyformer.objectives.permuted import Permuted
from anyformer.objectives.rewrite import Rewrite
from anyformer.objectives.translate import Translate


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
        self.task = task_of(objective)
        self.kind = kind_of(self.task)
        self.names = tuple(names) if names is not None else (*usual(self.task, self.kind), *loss_metrics(self.task))
        check(self.task, self.names)
        self.left_out: list[str] = []
        self.answered: Predictions | None = None  # predictions of the last call

    @property
    def plain(self) -> Objective:
        """The task without label smoothing."""
        smooth = isinstance(self.task, Rewrite | ClassifyImage) and self.task.smoothing
        return self.task.replace(smoothing=0.0) if smooth else self.task

    @functools.cached_property
    def examples(self) -> tuple[list[Example], list[list[Record]]]:
        """All examples, and the records that the objective makes of each."""
        examples, records = [], []
        for row in self.source.rows(self.task.columns):
            encoded = encode_row(row, self.task, self.tokenizer)
            if encoded.problem and not encoded.unread and not self.skip:
                raise ValueError(f"{encoded.place}: {encoded.problem}; data.unfit='skip' leaves such rows out")
            if encoded.problem:
                self.left_out.append(f"{encoded.place}: {encoded.problem}")
                continue
            examples.append(row.example or {})
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
        if isinstance(self.task, Translate):
            examples, records = self.examples
            tokens = sum(record["labels"].size for own in records for record in own)
            return tokens / sum(len(texts_of(example, "target")[0].encode()) for example in examples)
        assert self.split is not None
        rows = self.source.rows(self.task.columns)
        num_bytes = sum(len(str(row.example["text"]).encode()) for row in rows if row.example is not None)
        return self.split.tokens / num_bytes

    def __call__(self, job: Predictor, mean_loss: Callable[[Objective], float]) -> dict[str, float]:
        """Return the metrics. `mean_loss(objective)` returns the loss of an objective on this split."""
        scores = {}
        if any(name not in metrics.LOSSES for name in self.names):
            scores = self.score(self.ask(job))
        if any(name in metrics.LOSSES for name in self.names):
            loss = mean_loss(self.plain)
            scores["perplexity"] = math.exp(min(loss, 700.0))
            if "bits_per_byte" in self.names:
                scores["bits_per_byte"] = loss * self.tokens_per_byte / math.log(2)
        return {name: scores[name] for name in self.names}

    def ask(self, job: Predictor) -> Predictions:
        """Return the model's predictions for all examples."""
        examples, records = self.examples
        check_lengths(job.model, self.task, records)
        self.answered = predictions(self.task, job, examples, records)
        return self.answered

    def score(self, answered: Predictions) -> dict[str, float]:
        """Return the metrics of predictions."""
        known = metrics.METRICS.get(self.kind or "", {})
        return {name: known[name](*answered) for name in self.names if name in known}


def loss_metrics(task: Objective) -> tuple[str, ...]:
    """Return the metrics that follow from the mean loss per token; bits per byte only if every token is predicted."""
    if isinstance(task, NextToken | Translate):
        return metrics.LOSSES
    return metrics.LOSSES[:1] if type(task) is Masked or isinstance(task, Rewrite | Dialogue | Permuted) else ()


def check(objective: Objective, names: Sequence[str]) -> None:
    """Raise ValueError if the objective lacks these metrics or a library is missing, before any work."""
    task = task_of(objective)
    metrics.check(names, kind_of(task), loss_metrics(task))


def usual(task: Objective, kind: str | None) -> tuple[str, ...]:
    names = metrics.USUAL.get(kind or "", ())
    two = isinstance(task, Classify | ClassifyImage) and len(task.labels) == 2
    return tuple("f1" if kind == "labels" and two and name == "macro_f1" else name for name in names)


def check_lengths(model: TransformerModule, task: Objective, records: Sequence[Sequence[Record]]) -> None:
    limit, longest = position_limit(model.spec), max(task.size(record) for own in records for record in own)
    if limit is not None and longest > limit:
        raise ValueError(f"an example has {longest:,} tokens, and this model takes at most {limit:,}")
