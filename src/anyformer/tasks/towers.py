"""Vectors of texts and pictures in one space, by a two-tower model or one of its towers (CLIP)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.models import TwoTowerModule
from anyformer.objectives.batches import Record
from anyformer.objectives.examples import encode_pair
from anyformer.objectives.heads import model_inputs
from anyformer.objectives.match import truncate_with_end
from anyformer.parts.head.similarity import ProjectionModule
from anyformer.tasks.options import Truncate
from anyformer.tasks.task import Row, TaskRun


def towers(request: TaskRun) -> TwoTowerModule:
    model = request.model
    if not isinstance(model, TwoTowerModule) or model.head is None:
        raise ValueError(f"{request.task} compares texts with pictures: it needs a model with two towers, such as CLIP")
    return model


def tower(request: TaskRun, name: str) -> Any:
    """Return the model that turns a "text" or "image" into a vector; None if there is none."""
    model = getattr(request.model, name) if isinstance(request.model, TwoTowerModule) else request.model
    head = model.head
    return model if isinstance(head, ProjectionModule) and head.name == f"{name}_embeds" else None


def text_vectors(request: TaskRun, *, raw: bool = False, truncate: Truncate = True) -> Any:
    """Return the vector (D,) of every text, in fp32 on the CPU, of length 1 unless `raw`."""
    model, end = tower(request, "text"), request.tokenizer.eos_token_id

    def prepare(row: Row) -> Record:
        ids = truncate_with_end(encode_pair(request.tokenizer, row["text"])["input_ids"], end, None)
        length = request.cut_length(truncate)
        if length is not None and len(ids) > length:
            request.lost.append(len(ids) - length)
            ids = truncate_with_end(ids, end, length)
        request.fits(len(ids))
        return {"input_ids": ids}

    @torch.inference_mode()
    def finish(run: TaskRun, records: list[Record]) -> list[Any]:
        results: list[Any] = [None] * len(records)
        for which, batch in run.batches(records):
            vectors = model(**model_inputs(model, batch), return_dict=True)["text_embeds"].float().cpu()
            for i, vector in zip(which, vectors):
                results[i] = vector if raw else F.normalize(vector, dim=-1)
        return results

    return request.answer(prepare, finish)


def image_vectors(request: TaskRun, *, raw: bool = False, interpolate: bool = False) -> Any:
    """Return the vector (D,) of every picture, in fp32 on the CPU, of length 1 unless `raw`."""
    model = tower(request, "image")

    @torch.inference_mode()
    def finish(run: TaskRun, pictures: list[Tensor]) -> list[Any]:
        results: list[Any] = [None] * len(pictures)
        for which, batch in run.media_batches(pictures, interpolate=interpolate):
            vectors = model(**batch, return_dict=True)["image_embeds"].float().cpu()
            for i, vector in zip(which, vectors):
                results[i] = vector if raw else F.normalize(vector, dim=-1)
        return results

    return request.answer(request.pixels, finish, at_once=request.reader.batch)
