"""Run a model on a batch up to its head, and check that it has the head that an objective needs."""

from __future__ import annotations

from typing import Any, TypeVar

import torch.nn.functional as F
from torch import Tensor

from anyformer.models import position_limit
from anyformer.models.base import TransformerModule
from anyformer.models.call import Call, HeadInputs
from anyformer.objectives.batches import Batch
from anyformer.parts.embedding.text import TextEmbedding
from anyformer.parts.head.base import HeadModule
from anyformer.parts.head.language import LMHeadModule
from anyformer.parts.head.pretraining import PretrainingModule

PER_TOKEN = ("input_ids", "attention_mask", "token_type_ids")
H = TypeVar("H", bound=HeadModule)


def language_head(model: TransformerModule) -> LMHeadModule:
    """Return the head that scores the vocabulary."""
    head = model.head.lm if isinstance(model.head, PretrainingModule) else model.head
    if not isinstance(head, LMHeadModule):
        raise ValueError(f"this objective predicts tokens, but the model has {describe_head(model)}")
    return head


def describe_head(model: TransformerModule) -> str:
    """Return the name of a model's head and of its published class, for messages."""
    suffix = f" ({model.spec.architecture})" if model.spec.architecture else ""
    return f"{'no head' if model.head is None else type(model.spec.head).__name__}{suffix}"


def model_inputs(model: TransformerModule, batch: Batch) -> dict[str, Any]:
    """Return the inputs of a batch that the model takes, without segments if it has none. If the head pools the last
    index of a row, as published, padding moves to the left, or tokens fill the row up to the model's length."""
    inputs: dict[str, Any] = {name: batch[name] for name in model.inputs if name in batch}
    embedding = model.spec.embedding
    if not (isinstance(embedding, TextEmbedding) and embedding.num_segments):
        inputs.pop("token_type_ids", None)
    mask = inputs.get("attention_mask")
    head = model.spec.readers[0].head
    take = None if head is None or head.pool is None else head.pool.take
    if take is not None and take.fill_token is not None:
        ids, token = inputs["input_ids"], take.fill_token
        ids = ids if mask is None else ids.masked_fill(mask == 0, token)
        missing = (position_limit(model.spec) or 0) - ids.shape[1]
        inputs = {**inputs, "input_ids": F.pad(ids, (0, max(missing, 0)), value=token)}
        inputs.pop("attention_mask", None)
    elif mask is not None and take is not None and take.pads_left:
        order = mask.int().argsort(dim=-1, stable=True)
        moved = {name: inputs[name].gather(-1, order) for name in PER_TOKEN if name in inputs}
        inputs = {**inputs, **moved}
    return inputs


def forward_to_head(model: TransformerModule, batch: Batch) -> HeadInputs:
    """Run the model on a batch up to its head."""
    return model.hidden_states(Call(model_inputs(model, batch), kernel=model.kernel))


def logits_of(model: TransformerModule, states: HeadInputs, name: str = "logits") -> Tensor:
    """Return the head's logits in fp32."""
    return require_head(model).answer(states.x, states.ctx, states.inputs)[name].float()


def require_head(model: TransformerModule) -> HeadModule:
    if model.head is None:
        raise ValueError("this model has no head")
    return model.head


def head_of(model: TransformerModule, kind: type[H], what: str) -> H:
    if not isinstance(model.head, kind):
        wanted = f"{kind.__name__.removesuffix('Module')}Head"
        raise ValueError(f"{what} needs a model with a {wanted}; this one has {describe_head(model)}")
    return model.head
