"""Classify a picture by labels that the model was not trained on."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, Unpack

import torch

from anyformer.specs.messages import quote
from anyformer.tasks.results import Label, task
from anyformer.tasks.task import RunOptions, Source, file_of, start_run
from anyformer.tasks.towers import image_vectors, text_vectors, towers


@task
def zero_shot_image(
    model: Source,
    inputs: Any,
    *,
    labels: Annotated[Sequence[str] | None, "a name to choose from; repeat it for each"] = None,
    template: Annotated[str, "sentence around a name"] = "a photo of a {}.",
    top_k: Annotated[int, "number of names, most likely first; 0 for all"] = 0,
    **run_options: Unpack[RunOptions],
) -> list[Label]:
    """Return [{"label", "score"}, ...], most likely first: `top_k` labels, or all if it is 0. `template` has {} for the
    label. For a folder, the entries of each picture also have its "file".

    >>> zero_shot_image("a/clip/folder", "cat.png", labels=["cat", "dog"])  # doctest: +SKIP
    [{'label': 'cat', 'score': 0.98}, {'label': 'dog', 'score': 0.02}]
    """
    if labels is None or isinstance(labels, str) or len(labels) < 2 or len({*labels}) < len(labels):
        raise ValueError("labels: give two or more different names")
    if "{}" not in template:
        raise ValueError(f"template {quote(template)} has no {{}} for the name")
    if top_k < 0:
        raise ValueError(f"top_k is {top_k}; it must be at least 0 (0 for all)")
    request = start_run("zero-shot-image", model, inputs, run_options)
    head = copy.deepcopy(towers(request).head).float().cpu()
    sentences = [{"text": template.replace("{}", label)} for label in labels]
    texts = text_vectors(dataclasses.replace(request, rows=sentences, one=False, lost=[]))
    for label, vector in zip(labels, texts, strict=True):
        if isinstance(vector, dict):
            raise ValueError(f"label {label!r}: {vector['error']}")
    both = torch.stack(texts)  # (labels, D)
    vectors = image_vectors(request)

    @torch.inference_mode()
    def result(row: Any, vector: Any) -> Any:
        if isinstance(vector, dict):
            return vector
        scores = head.probabilities(head.logits(both @ vector)).tolist()
        best = sorted(zip(labels, scores), key=lambda each: -each[1])[: top_k or None]
        return [{**file_of(row), "label": label, "score": score} for label, score in best]

    return result(request.rows[0], vectors) if request.one else list(map(result, request.rows, vectors))
