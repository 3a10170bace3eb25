"""Store the vectors of texts in a file for `search`, which finds texts by meaning."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Unpack

import torch

from anyformer.tasks.each.embed import embed
from anyformer.tasks.options import Truncate
from anyformer.tasks.task import RunOptions, Source, open_model
from anyformer.tasks.vector_index import fingerprint, write_index
from anyformer.weights import hub


def index(
    model: Source,
    inputs: Sequence[str],
    out: str | Path,
    *,
    rows: Sequence[int] | None = None,
    pool: str | None = None,
    truncate: Truncate = None,
    **run_options: Unpack[RunOptions],
) -> list[dict[str, Any]]:
    """Write the texts and their vectors (see `embed`) to the file `out`. Return {"row", "error"} for each text that has
    no vector, such as an empty one. `rows` are the numbers of the texts in search results; default: 0, 1, ...

    >>> index("a/model/folder", ["A dog barks.", "It rains."], "texts.index")  # doctest: +SKIP
    []
    """
    if isinstance(inputs, str):
        raise ValueError("index needs a list of texts")
    numbers = list(range(len(inputs)) if rows is None else rows)
    if len(numbers) != len(inputs):
        raise ValueError(f"{len(numbers)} rows for {len(inputs)} texts")
    reader = open_model(model, **run_options)
    vectors: list[Any] = embed(reader, list(inputs), pool=pool, truncate=truncate)  # {"error"} for a text that fails
    good = [i for i, vector in enumerate(vectors) if not isinstance(vector, dict)]
    if not good:
        raise ValueError(f"no text has a vector; the first: {vectors[0]['error']}" if vectors else "there are no texts")
    encoded = [inputs[i].encode("utf-8", "replace") for i in good]
    tensors = {
        "vectors": torch.stack([vectors[i] for i in good]),  # (N, D)
        "rows": torch.tensor([numbers[i] for i in good]),
        "texts": torch.frombuffer(bytearray(b"".join(encoded)), dtype=torch.uint8),
        "ends": torch.tensor(list(accumulate(map(len, encoded)))),  # (N,) in bytes
    }
    about = {"model": fingerprint(reader.model), "name": name_of(model, reader.model.folder), "pool": pool or ""}
    write_index(Path(out), about, tensors)
    return [{"row": numbers[i], **vector} for i, vector in enumerate(vectors) if isinstance(vector, dict)]


def name_of(model: Source, folder: Path | None) -> str:
    """Return the name that `search` opens: an absolute path, or a hub id."""
    name = os.path.expanduser(model) if isinstance(model, str | Path) else str(folder or "")
    return os.path.abspath(name) if os.path.isdir(hub.run_of(name)[0]) else name
