"""Vectors of texts and of pictures in one space, by a model with two towers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.model import TwoTowerModule
from anyformer.objectives.examples import joined
from anyformer.objectives.match import ended
from anyformer.tasks.task import TaskRun


def towers(asked: TaskRun) -> TwoTowerModule:
    if not isinstance(asked.model, TwoTowerModule):
        raise ValueError(f"{asked.task} compares texts with pictures: it needs a model with two towers, such as CLIP")
    return asked.model


@torch.inference_mode()
def text_vectors(asked: TaskRun, texts: Sequence[str]) -> Tensor:
    """(N, D) of length 1, in fp32 on the CPU."""
    tower, found = towers(asked).text, torch.empty(len(texts), towers(asked).spec.width)
    end, limit = asked.tokenizer.eos_token_id, asked.limit or 77
    records = [{"input_ids": ended(joined(asked.tokenizer, text)["input_ids"], end, limit)} for text in texts]
    for which, batch in asked.batches(records):
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask") if name in batch}
        found[which] = F.normalize(tower(**inputs)["text_embeds"].float().cpu(), dim=-1)
    return found


@torch.inference_mode()
def image_vectors(asked: TaskRun) -> Tensor:
    """The same of the pictures that are asked about."""
    tower, found = towers(asked).image, torch.empty(len(asked.rows), towers(asked).spec.width)
    for which, batch in asked.seen():
        found[which] = F.normalize(tower(**batch)["image_embeds"].float().cpu(), dim=-1)
    return found
