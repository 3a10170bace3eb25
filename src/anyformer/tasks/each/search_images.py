"""Find the pictures of a folder that fit a text best."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any, Unpack

import torch
from torch import Tensor

from anyformer.inputs.image import files
from anyformer.specs.messages import quote
from anyformer.tasks.results import FoundImage, task
from anyformer.tasks.task import Inputs, RunOptions, Source, TaskRun, start_run
from anyformer.tasks.towers import image_vectors, text_vectors, towers
from anyformer.tasks.vector_index import best_rows, fingerprint, read_index, write_index


@task
def search_images(
    model: Source,
    inputs: Inputs,
    *,
    folder: Annotated[str | Path, "folder of pictures"] = "",
    index: Annotated[str | Path | None, "file that stores their vectors; created if missing"] = None,
    top_k: Annotated[int, "number of pictures, best first"] = 5,
    **run_options: Unpack[RunOptions],
) -> list[FoundImage]:
    """Return [{"file", "score"}, ...] for a text, best first; the score is a cosine. `index` stores the vectors of the
    pictures, so that only new or changed pictures are read the next time.

    >>> search_images("a/clip/folder", "a red heart", folder="pictures", index="pictures.index")  # doctest: +SKIP
    [{'file': 'pictures/heart.png', 'score': 0.31}, ...]

    A picture that cannot be read is listed after the best ones, as {"file", "error"}.
    """
    if top_k < 1:
        raise ValueError(f"top_k is {top_k}; it must be at least 1")
    if not folder or not Path(folder).expanduser().is_dir():
        raise ValueError(f"folder {quote(str(folder))}: no such folder of pictures")
    paths = files(Path(folder).expanduser())
    request = start_run("search-images", model, inputs, run_options)
    names = {str(file): f"{file.stat().st_size} {file.stat().st_mtime_ns}" for file in paths}
    vectors, errors = picture_vectors(request, names, None if index is None else Path(index))
    readable, table = list(vectors), torch.stack([*vectors.values()]) if vectors else None  # (pictures, D)

    def result(text: Any) -> Any:
        if isinstance(text, dict) or table is None:
            return text if isinstance(text, dict) else errors
        return [*({"file": readable[i], "score": score} for i, score in best_rows(table, text, top_k)), *errors]

    texts = text_vectors(request)
    return result(texts) if request.one else list(map(result, texts))


def picture_vectors(
    request: TaskRun, names: dict[str, str], index: Path | None
) -> tuple[dict[str, Tensor], list[dict[str, str]]]:
    """Return the vector (D,) of each picture, from the index if it is up to date, and {"file", "error"} for pictures
    that cannot be read. `names` maps each file to its size and modification time."""
    model, stored = fingerprint(towers(request).image), {}
    if index is not None and index.exists():
        stored = stored_vectors(index, model)
    known = {name: vector for name, (state, vector) in stored.items() if names.get(name) == state}
    new: Any = [{"image": name, "file": name} for name in names if name not in known]
    read = image_vectors(dataclasses.replace(request, rows=new, one=False, lost=[])) if new else []
    errors = [vector for vector in read if isinstance(vector, dict)]
    known |= {row["file"]: vector for row, vector in zip(new, read, strict=True) if not isinstance(vector, dict)}
    vectors = {name: known[name] for name in names if name in known}
    if index is not None and vectors and (len(errors) < len(new) or vectors.keys() != stored.keys()):
        states = json.dumps({name: names[name] for name in vectors})
        write_index(index, {"model": model, "files": states}, {"vectors": torch.stack([*vectors.values()])})
    return vectors, errors


def stored_vectors(index: Path, model: str) -> dict[str, tuple[str, Tensor]]:
    """Read an index: file -> (its size and modification time when it was read, its vector)."""
    about, tensors = read_index(index, "pictures", ("files",))
    if about["model"] != model:
        raise ValueError(f"{index} was written with a different model; give another file")
    try:
        states = json.loads(about["files"])
        return {name: (state, vector) for (name, state), vector in zip(states.items(), tensors["vectors"], strict=True)}
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{index} is not an index of pictures: {error}") from None
