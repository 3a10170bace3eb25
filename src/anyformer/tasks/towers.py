"""Vectors of texts and of pictures in one space: of a model with two towers, or of one of them alone (CLIP)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.model import TwoTowerModule
from anyformer.objectives.examples import joined
from anyformer.objectives.match import ended
from anyformer.parts.similarity import ProjectionModule
from anyformer.tasks.task import TaskRun


def towers(asked: TaskRun) -> TwoTowerModule:
    model = asked.model
    if not isinstance(model, TwoTowerModule) or model.head is None:
        raise ValueError(f"{asked.task} compares texts with pictures: it needs a model with two towers, such as CLIP")
    return model


def tower(asked: TaskRun, name: str) -> Any:
    """What reads "text" or "image" and ends in a vector of its own; None where nothing does."""
    model = getattr(asked.model, name) if isinstance(asked.model, TwoTowerModule) else asked.model
    head = model.head
    return model if isinstance(head, ProjectionModule) and head.name == f"{name}_embeds" else None


@torch.inference_mode()
def text_vectors(asked: TaskRun, texts: Sequence[str], *, raw: bool = False, truncate: bool = True) -> Tensor:
    """(N, D) in fp32 on the CPU, of length 1 unless `raw`."""
    model, end, limit = tower(asked, "text"), asked.tokenizer.eos_token_id, asked.limit
    ids = [joined(asked.tokenizer, text)["input_ids"] for text in texts]
    records = [{"input_ids": ended(each, end, limit if truncate else None)} for each in ids]
    for record in records:
        asked.fits(len(record["input_ids"]))
    found = torch.empty(len(texts), model.spec.head.width)
    for which, batch in asked.batches(records):
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask") if name in batch}
        found[which] = model(**inputs, return_dict=True)["text_embeds"].float().cpu()
    return found if raw else F.normalize(found, dim=-1)


@torch.inference_mode()
def image_vectors(asked: TaskRun, *, raw: bool = False, interpolate: bool = False) -> Tensor:
    """The same of the pictures that are asked about."""
    model = tower(asked, "image")
    found = torch.empty(len(asked.rows), model.spec.head.width)
    for which, batch in asked.seen(interpolate):
        found[which] = model(**batch, return_dict=True)["image_embeds"].float().cpu()
    return found if raw else F.normalize(found, dim=-1)
