"""A name for a picture, of names that no one taught the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from anyformer.messages import quote
from anyformer.tasks.task import How, Source, ask
from anyformer.tasks.towers import image_vectors, text_vectors, towers


def zero_shot_image(
    model: Source, inputs: Any, *, labels: Sequence[str] | None = None, template: str = "a photo of a {}.",
    top_k: int = 0, **how: Unpack[How],
) -> Any:  # fmt: skip
    """[{"label", "score"}, ...], likeliest first: `top_k` of them, and all with 0. Each label is put in the place of {}
    in `template`. Of a folder, those of each picture in it, with its "file".

    >>> zero_shot_image("a/clip/folder", "cat.png", labels=["cat", "dog"])  # doctest: +SKIP
    [{'label': 'cat', 'score': 0.98}, {'label': 'dog', 'score': 0.02}]
    """
    if labels is None or isinstance(labels, str) or len(labels) < 2 or len({*labels}) < len(labels):
        raise ValueError("labels: two names or more to choose from, and none twice")
    if "{}" not in template:
        raise ValueError(f"template {quote(template)} has no {{}} where a name would stand")
    if top_k < 0:
        raise ValueError(f"top_k is {top_k}; it must be at least 0, which is all")
    asked = ask("zero-shot-image", model, inputs, how)
    texts = text_vectors(asked, [template.replace("{}", label) for label in labels])
    scale = towers(asked).head.scale.detach().float().exp().cpu()
    found = []
    for row, vector in zip(asked.rows, image_vectors(asked)):
        scores = (texts @ vector * scale).softmax(-1).tolist()
        best = sorted(zip(labels, scores), key=lambda each: -each[1])[: top_k or None]
        file = {"file": row["file"]} if "file" in row else {}
        found.append([{**file, "label": label, "score": score} for label, score in best])
    return asked.give(found)
