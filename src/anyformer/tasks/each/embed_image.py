"""Turn a picture into a vector; similar pictures get similar vectors."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

import torch.nn.functional as F
from torch import Tensor

from anyformer.specs.messages import nearest, quote
from anyformer.tasks.each.embed import last_hidden_states
from anyformer.tasks.options import Interpolate, Raw
from anyformer.tasks.results import task
from anyformer.tasks.task import RunOptions, Source, TaskRun, start_run
from anyformer.tasks.towers import image_vectors, tower

POOLS = ("cls", "mean")


@task
def embed_image(
    model: Source,
    inputs: Any,
    *,
    pool: Annotated[str | None, "cls or mean (default: cls if the model has a class token, else mean)"] = None,
    raw: Raw = False,
    interpolate: Interpolate = False,
    **run_options: Unpack[RunOptions],
) -> Tensor:
    """Return the vector (D,) of a picture, in fp32 on the CPU, of length 1 unless `raw`. A list of pictures, or a
    folder in the order of its files, gives a list with one vector per picture, or {"error": message} for a picture that
    fails.

    `pool` chooses the last hidden states that represent the picture: "cls", the first one before the patches, if the
    model has one; "mean", the mean over all patches. Without `pool`, a model that ends in a vector for a picture (CLIP)
    gives that vector.

    >>> a, b = embed_image("a/model/folder", ["cat.png", "dog.png"])  # doctest: +SKIP
    """
    if pool is not None and pool not in POOLS:
        raise ValueError(f"no pool {quote(pool)}; {nearest(pool, POOLS)}")
    request = start_run("embed-image", model, inputs, run_options)
    if pool is None and tower(request, "image") is not None:
        return image_vectors(request, raw=raw, interpolate=interpolate)
    if request.model.spec.towers:
        raise ValueError("pool: a two-tower model has its own image vector; leave pool out")
    before = request.model.spec.embedding.num_prefix
    if pool == "cls" and not before:
        raise ValueError("pool is 'cls', but this model has no class token; use 'mean'")

    def finish(run: TaskRun, pictures: list[Tensor]) -> list[Any]:
        vectors: list[Any] = [None] * len(pictures)
        for which, batch in run.media_batches(pictures, interpolate=interpolate):
            x = last_hidden_states(run, batch).cpu()  # (B, T, D)
            pooled = x[:, before:].mean(1) if pool == "mean" or not before else x[:, 0]
            for i, vector in zip(which, pooled):
                vectors[i] = vector if raw else F.normalize(vector, dim=-1)
        return vectors

    return request.answer(request.pixels, finish, at_once=request.reader.batch)
