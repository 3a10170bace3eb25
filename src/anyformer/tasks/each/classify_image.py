"""Classify a picture."""

from __future__ import annotations

from typing import Any, Unpack

from torch import Tensor

from anyformer.objectives.heads import head_of
from anyformer.parts.head.classify import ClassifyModule
from anyformer.parts.head.image import DistilledModule
from anyformer.tasks.each.classify import scores_of
from anyformer.tasks.options import Interpolate, Labels, TopLabels
from anyformer.tasks.results import Label, task
from anyformer.tasks.task import RunOptions, Source, TaskRun, file_of, labels_of, start_run


@task
def classify_image(
    model: Source,
    inputs: Any,
    *,
    top_k: TopLabels = 1,
    labels: Labels = None,
    interpolate: Interpolate = False,
    **run_options: Unpack[RunOptions],
) -> list[Label]:
    """Return [{"label", "score"}, ...], most likely first: `top_k` labels, or all if it is 0. For a folder, one such
    list per picture, in which each entry also has the "file".

    >>> classify_image("a/model/folder", "cat.png")  # doctest: +SKIP
    [{'label': 'tabby', 'score': 0.93}]
    """
    if top_k < 0:
        raise ValueError(f"top_k is {top_k}; it must be at least 0 (0 for all)")
    request = start_run("classify-image", model, inputs, run_options)
    distilled = isinstance(request.model.head, DistilledModule)
    problem = None if distilled else head_of(request.model, ClassifyModule, "classification").problem
    names = labels_of(request, request.model.spec.head.num_labels, labels)

    def finish(run: TaskRun, pictures: list[Tensor]) -> list[Any]:
        results: list[Any] = [None] * len(pictures)
        for which, batch in run.media_batches(pictures, interpolate=interpolate):
            for i, logits in zip(which, run.run(batch)["logits"]):
                best = scores_of(logits.float(), names, problem)[: top_k or None]
                results[i] = [{**file_of(run.rows[i]), **each} for each in best]
        return results

    return request.answer(request.pixels, finish, at_once=request.reader.batch)
