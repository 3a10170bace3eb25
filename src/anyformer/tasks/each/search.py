"""Find the texts of an index whose meaning is closest to a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from torch import Tensor

from anyformer.tasks.each.embed import embed
from anyformer.tasks.task import Inputs, RunOptions, Source, open_model
from anyformer.tasks.vector_index import best_rows, fingerprint, read_index


def search(
    index: str | Path,
    inputs: Inputs,
    *,
    model: Source | None = None,
    top_k: int = 5,
    **run_options: Unpack[RunOptions],
) -> Any:
    """Return [{"score", "row", "text"}, ...] for a text, best first; the score is a cosine. `index` is a file that
    `tasks.index` wrote. `model` is needed only if the model is no longer where it was.

    >>> search("texts.index", "an animal", top_k=1)  # doctest: +SKIP
    [{'score': 0.61, 'row': 0, 'text': 'A dog barks.'}]
    """
    if top_k < 1:
        raise ValueError(f"top_k is {top_k}; it must be at least 1")
    about, tensors = read_texts(Path(index))
    try:
        reader = open_model(about["name"] if model is None else model, **run_options)
    except FileNotFoundError as error:
        why = f"the model of this index is missing ({error}); give its new place as model"
        raise FileNotFoundError(f"{index}: {why}") from None
    if fingerprint(reader.model) != about["model"]:
        raise ValueError(f"{index} was written with a different model; write it again with `anyformer index`")
    found = embed(reader, inputs, pool=about["pool"] or None)

    def result(vector: Any) -> Any:
        if isinstance(vector, dict):
            return vector
        best = best_rows(tensors["vectors"], vector, top_k)
        return [{"score": score, "row": int(tensors["rows"][i]), "text": text_at(tensors, i)} for i, score in best]

    return list(map(result, found)) if isinstance(found, list) else result(found)


def read_texts(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Read an index of texts; ValueError if its tensors do not fit together."""
    about, tensors = read_index(path, "texts", ("name", "pool"))
    count = len(tensors["vectors"])
    whole = {*tensors} >= {"rows", "texts", "ends"} and len(tensors["rows"]) == len(tensors["ends"]) == count > 0
    if not whole or tensors["vectors"].dim() != 2 or int(tensors["ends"][-1]) != len(tensors["texts"]):
        raise ValueError(f"{path} is not an index of texts: its tensors do not fit together")
    return about, tensors


def text_at(tensors: dict[str, Tensor], i: int) -> str:
    """Return a text of an index."""
    begin = int(tensors["ends"][i - 1]) if i else 0
    return bytes(tensors["texts"][begin : int(tensors["ends"][i])].tolist()).decode("utf-8", "replace")
