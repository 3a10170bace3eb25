"""Turn a text into a vector; texts with the same meaning get similar vectors."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.models import Call
from anyformer.objectives.batches import Batch, Record
from anyformer.objectives.heads import model_inputs
from anyformer.objectives.sentence_pooling import POOLS, pool_of, pool_states
from anyformer.specs.messages import nearest, quote
from anyformer.tasks.options import Raw, Truncate
from anyformer.tasks.results import task
from anyformer.tasks.task import Inputs, RunOptions, Source, TaskRun, start_run
from anyformer.tasks.towers import text_vectors, tower


@task
def embed(
    model: Source,
    inputs: Inputs,
    *,
    pool: Annotated[str | None, "cls, mean or last (default: the folder's; else mean, or last for a decoder)"] = None,
    raw: Raw = False,
    truncate: Truncate = None,
    **run_options: Unpack[RunOptions],
) -> Tensor:
    """Return the vector (D,) of a text, in fp32 on the CPU, of length 1 unless `raw`. A list of texts gives a list with
    one vector per text, or {"error": message} for a text that fails; torch.stack joins vectors to one tensor (N, D).

    `pool` selects the final hidden states that represent the text: "cls" (the first), "mean" (of all) or "last". The
    default is that of the training (or of 1_Pooling/config.json), otherwise "mean", or "last" for a decoder, because
    only its last token has seen the whole text. An encoder-decoder uses its encoder; a model with a head for text
    vectors (CLIP) uses that head.

    >>> a, b = embed("a/model/folder", ["A dog barks.", "A dog is barking."])  # doctest: +SKIP
    >>> float(a @ b)  # doctest: +SKIP
    0.92
    """
    if pool is not None and pool not in POOLS:
        raise ValueError(f"no pool {quote(pool)}; {nearest(pool, POOLS)}")
    request = start_run("embed", model, inputs, run_options)
    if pool is None and tower(request, "text") is not None:
        return text_vectors(request, raw=raw, truncate=truncate)
    if request.model.spec.towers:
        raise ValueError("pool: a two-tower model has its own text vector; leave pool out")
    pool = pool or pool_of(request.model.spec, request.model.folder)

    def finish(run: TaskRun, records: list[Record]) -> list[Any]:
        vectors: list[Any] = [None] * len(records)
        for which, batch in run.batches(records):
            pooled = pool_states(last_hidden_states(run, batch), batch.get("attention_mask"), pool).cpu()
            for i, vector in zip(which, pooled):
                vectors[i] = vector if raw else F.normalize(vector, dim=-1)
        return vectors

    return request.answer(lambda row: request.record(row["text"], truncate=truncate), finish)


@torch.inference_mode()
def last_hidden_states(request: TaskRun, batch: Batch) -> Tensor:
    """Return the last hidden states (B, T, D) of the decoder or encoder."""
    model = request.model
    call = Call(model_inputs(model, batch), kernel=model.kernel)
    x = model.encode(call)[0] if model.spec.pair else model.hidden_states(call).x
    model.check_finite({"last_hidden_state": x}, call, resumed=False)
    return x.float()
