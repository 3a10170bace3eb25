"""The pictures of a folder that fit a text best."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, Unpack

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from anyformer.inputs.image import files
from anyformer.messages import quote
from anyformer.tasks.task import How, Inputs, Source, TaskRun, ask
from anyformer.tasks.towers import image_vectors, text_vectors, towers


def search_images(
    model: Source, inputs: Inputs, *, folder: str | Path = "", index: str | Path | None = None, top_k: int = 5,
    **how: Unpack[How],
) -> Any:  # fmt: skip
    """[{"file", "score"}, ...] of a text, best first; the score is a cosine. `index` keeps the vectors of the folder's
    pictures: those that are new or were changed are read, the others are not.

    >>> search_images("a/clip/folder", "a red heart", folder="pictures", index="pictures.index")  # doctest: +SKIP
    [{'file': 'pictures/heart.png', 'score': 0.31}, ...]
    """
    if top_k < 1:
        raise ValueError(f"top_k is {top_k}; it must be at least 1")
    if not folder or not Path(folder).expanduser().is_dir():
        raise ValueError(f"folder {quote(str(folder))}: no such folder of pictures")
    found = files(Path(folder).expanduser())
    asked = ask("search-images", model, inputs, how)
    names = {str(file): f"{file.stat().st_size} {file.stat().st_mtime_ns}" for file in found}
    vectors = indexed(asked, names, None if index is None else Path(index))
    scores = text_vectors(asked, [row["text"] for row in asked.rows]) @ vectors.t()  # (texts, pictures)
    best = scores.topk(min(top_k, len(names)), dim=-1)
    files_of = list(names)
    return asked.give([
        [{"file": files_of[i], "score": score} for i, score in zip(which.tolist(), values.tolist())]
        for which, values in zip(best.indices, best.values)
    ])  # fmt: skip


def indexed(asked: TaskRun, names: dict[str, str], index: Path | None) -> Tensor:
    """(pictures, D): those that the index has as they are, and the others read now."""
    mine, kept = identity(asked), {}
    if index is not None and index.exists():
        kept = stored(index, mine)
    new = [name for name, state in names.items() if kept.get(name, ("", None))[0] != state]
    if new:
        pictures: Any = [{"image": name, "file": name} for name in new]
        for name, vector in zip(new, image_vectors(dataclasses.replace(asked, rows=pictures, one=False))):
            kept[name] = (names[name], vector)
    vectors = torch.stack([kept[name][1] for name in names])
    if index is not None and (new or len(kept) > len(names)):
        save_file({"vectors": vectors}, index, {"model": mine, "files": json.dumps(names)})
    return vectors


def stored(index: Path, mine: str) -> dict[str, tuple[str, Any]]:
    """file -> (its state when it was read, its vector)"""
    try:
        with safe_open(index, "pt") as file:
            about, vectors = file.metadata() or {}, file.get_tensor("vectors")
            states = json.loads(about["files"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ValueError(f"{index} is no index of pictures: {error}") from None
    if about.get("model") != mine:
        raise ValueError(f"{index} was made with another model; another file, or none, makes it anew")
    return {name: (state, vector) for (name, state), vector in zip(states.items(), vectors)}


def identity(asked: TaskRun) -> str:
    """A fingerprint of what makes vectors of pictures."""
    digest = hashlib.sha256()
    for name, tensor in towers(asked).image.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {float(tensor.double().sum())!r}".encode())
    return digest.hexdigest()
