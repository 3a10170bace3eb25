"""Classify a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Unpack

from torch import Tensor

from anyformer.objectives.batches import Record
from anyformer.objectives.heads import head_of
from anyformer.parts.head.classify import ClassifyModule
from anyformer.tasks.options import Labels, TopLabels, Truncate
from anyformer.tasks.results import Label, task
from anyformer.tasks.task import Inputs, Row, RunOptions, Source, labels_of, start_run


@task
def classify(
    model: Source,
    inputs: Inputs,
    *,
    pair: Annotated[str | None, "second text of every input"] = None,
    top_k: TopLabels = 1,
    labels: Labels = None,
    truncate: Truncate = None,
    **run_options: Unpack[RunOptions],
) -> list[Label]:
    """Return [{"label", "score"}, ...], most likely first: `top_k` labels, or all if it is 0. A pair of texts is
    {"text", "pair"}; `pair` is the second text of every input without its own.

    Scores are probabilities (sigmoids for multi-label models), or raw values for regression. `labels` replace the names
    in the model's config, in the same order.

    >>> classify("a/model/folder", "A fine film.")  # doctest: +SKIP
    [{'label': 'positive', 'score': 0.98}]
    """
    if top_k < 0:
        raise ValueError(f"top_k is {top_k}; it must be at least 0 (0 for all)")
    request = start_run("classify", model, inputs, run_options)
    head = head_of(request.model, ClassifyModule, "classification")
    names = labels_of(request, head.num_labels, labels)
    if head.pool.part.take.one_row:
        request = request.replace(batch=1)

    def prepare(row: Row) -> Record:
        second = row.get("pair", pair)
        if second is not None and not isinstance(second, str):
            raise ValueError(f"pair is {type(second).__name__}, not text")
        return request.record(row["text"], second, truncate=truncate)

    def result(output: Any, record: Record) -> list[dict[str, Any]]:
        return scores_of(output.logits.float(), names, head.problem)[: top_k or None]

    return request.answer(prepare, lambda run, records: run.map_outputs(records, result))


def scores_of(logits: Tensor, names: Sequence[str], problem: str | None) -> list[dict[str, Any]]:
    """Return the labels and scores of logits (C,), most likely first."""
    if problem == "multi_label_classification" or (len(names) == 1 and problem != "regression"):
        logits = logits.sigmoid()
    elif problem != "regression":
        logits = logits.softmax(-1)
    scores = [{"label": name, "score": score} for name, score in zip(names, logits.tolist(), strict=True)]
    return sorted(scores, key=lambda one: -one["score"])
