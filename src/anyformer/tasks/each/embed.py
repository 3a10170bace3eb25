"""Turn a text into a vector; texts with the same meaning get similar vectors."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.models import Call
from anyformer.objectives.batches import Batch, Record
from anyformer.objectives.heads import model_inputs
from anyformer.specs.messages import nearest, quote
from anyformer.tasks.options import Raw, Truncate
from anyformer.tasks.results import task
from anyformer.tasks.task import Inputs, RunOptions, Source, TaskRun, start_run
from anyformer.tasks.towers import text_vectors, tower
from anyformer.weights.io import read_json

POOLS = ("cls", "mean", "last")


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
    default is the folder's (1_Pooling/config.json), otherwise "mean", or "last" for a decoder, because only its last
    token has seen the whole text. An encoder-decoder uses its encoder; a model with a head for text vectors (CLIP)
    uses that head.

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
    pool = pool or default_pool(request)

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


def pool_states(x: Tensor, mask: Tensor | None, pool: str) -> Tensor:
    """(B, T, D) -> (B, D); `mask` (B, T) is 0 for padding, which may be on either side."""
    if mask is None:
        mask = torch.ones(x.shape[:2], dtype=torch.long, device=x.device)
    if pool == "mean":
        weights = mask[..., None].to(x.dtype)
        return (x * weights).sum(1) / weights.sum(1)
    rows, positions = torch.arange(len(x), device=x.device), torch.arange(x.shape[1], device=x.device)
    return x[rows, mask.argmax(-1) if pool == "cls" else (positions * mask).argmax(-1)]


def default_pool(request: TaskRun) -> str:
    """Return the pooling in the file of sentence-transformers, or the usual pooling for the model."""
    folder = request.model.folder
    if folder is not None and (folder / "1_Pooling" / "config.json").is_file():
        config = read_json(folder / "1_Pooling" / "config.json")
        names = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "last": "pooling_mode_lasttoken"}
        chosen = [pool for pool, name in names.items() if config.get(name)]
        enabled = [name for name, on in config.items() if name.startswith("pooling_mode") and on is True]
        if len(chosen) != 1 or len(enabled) != 1:
            raise ValueError(f"{folder / '1_Pooling'}: the file enables {', '.join(enabled) or 'nothing'}; set pool")
        return chosen[0]
    spec = request.model.spec
    return "mean" if spec.pair or not spec.left_to_right else "last"
