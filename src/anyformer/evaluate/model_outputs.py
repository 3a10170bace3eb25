"""Run a model for a comparison: its inputs, padded or not, its outputs, losses and gradients.

B batch, T tokens.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.models.decoder_with_towers import TowerInputModel
from anyformer.parts.head.classify import ClassifyHead, MultipleChoiceHead
from anyformer.parts.head.image import DistilledHead
from anyformer.parts.head.pooling import Pooling
from anyformer.parts.head.pretraining import NextSentenceHead
from anyformer.parts.head.xvector import XVectorHead
from anyformer.specs.part import walk

TOKEN_LABELS = ("token_type_ids", "task_type_ids", "langs")
TOKEN_INPUTS = ("input_ids", "attention_mask", *TOKEN_LABELS, "global_attention_mask", "tree_parents", "graph_edges")
VECTORS = ("inputs_embeds", "states", "actions", "rewards", "returns_to_go", "input_features", "points")  # (..., T, n)
PER_ROW = {
    "pooler_output", "seq_relationship_logits", "sop_logits", "mc_logits", "cls_logits", "distillation_logits",
    "embeddings", "text_embeds", "image_embeds",
}  # fmt: skip
PER_ROW_HEADS = (ClassifyHead, NextSentenceHead, MultipleChoiceHead, DistilledHead, XVectorHead)


class DoesNotApply(Exception):
    """Raised, with the reason, if a model does not have the ability that is checked."""


class Failed(AssertionError):
    """Raised if an invariant does not hold; the message is one line."""


def in_double(model: Any) -> Any:
    """Return a copy in double precision: differences that vanish in it are rounding errors."""
    return copy.deepcopy(model).double()


def results(spec: Any, out: Any) -> dict[str, tuple[Tensor, bool]]:
    """Return name -> (tensor, whether its second dimension is time) of all outputs, without attention maps and caches,
    and without outputs that depend on the other rows of a batch."""
    found = {f"feature_maps.{i}": (value, False) for i, value in enumerate(out.get("feature_maps", ()))}
    for name, value in out.items():
        of_batch = name.startswith(("encoder_", "logits_per_", "image_hidden_"))
        if isinstance(value, Tensor) and value.dim() > 1 and value.is_floating_point() and not of_batch:
            per_row = name in PER_ROW or (name == "logits" and isinstance(spec.head, PER_ROW_HEADS))
            found[name] = (value, not per_row)
    return found


@contextlib.contextmanager
def set_kernel(model: Any, kernel: str, training: bool | None = None) -> Iterator[None]:
    """Run a model with a kernel and a mode; restore both afterwards."""
    before = model.kernel, model.training
    model.kernel = kernel
    if training is not None:
        model.train(training)
    try:
        yield
    finally:
        model.kernel = before[0]
        if training is not None:
            model.train(before[1])


def call(model: Any, inputs: Mapping[str, Any], **options: Any) -> Any:
    """Call a model with inputs in its dtype, without pictures whose token is not in the text. Random numbers are the
    same in every call."""
    towers = model.spec.input_towers.values() if isinstance(model.spec, TowerInputModel) else ()
    absent = {each.model.embedding.inputs[0] for each in towers if not (inputs["input_ids"] == each.token).any()}
    given = {
        name: value.to(model.dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs.items() if name not in absent
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return model(**given, **options)


@torch.no_grad()
def outputs(
    model: Any, inputs: Mapping[str, Any], kernel: str = "auto", **options: Any
) -> dict[str, tuple[Tensor, bool]]:
    with set_kernel(model, kernel):
        return results(model.spec, call(model, inputs, **options))


def gap(a: Tensor, b: Tensor) -> float:
    """Return the largest difference, relative to the largest value of `b` if it is above 1."""
    a, b = a.detach(), b.detach()
    if a.shape != b.shape:
        raise Failed(f"the shape is {tuple(a.shape)} and not {tuple(b.shape)}")
    if not b.numel():
        return 0.0
    if not bool(a.isfinite().all() & b.isfinite().all()):
        raise Failed("values are not finite")
    return float((a - b).abs().max()) / max(1.0, float(b.abs().max()))


def main_input(spec: Any) -> str:
    """Return the name of the input that generation extends."""
    return "decoder_input_ids" if spec.pair else spec.embedding.inputs[0]


def is_episode(spec: Any) -> bool:
    """Whether the model reads several inputs per step: an episode, or the points of a function."""
    return len(spec.embedding.row(1, 1)) > 1 and "a condition" not in spec.embedding.gives


def inputs_along_time(spec: Any, inputs: Mapping[str, Any]) -> list[str]:
    """Return the names of inputs with one value per token of the text that the model writes."""
    main = main_input(spec)
    if spec.pair:
        return [main]
    names = (main, *TOKEN_LABELS, "global_attention_mask", *(spec.embedding.inputs if is_episode(spec) else ()))
    return [name for name in dict.fromkeys(names) if name in inputs]


def padding_token(spec: Any) -> int:
    tokens = [part.padding_token for _, part in walk(spec.head) if isinstance(part, Pooling)]
    return next((token for token in tokens if token), 0)


def pad(inputs: Mapping[str, Any], names: Collection[str], left: int, right: int, token: int = 0) -> dict[str, Any]:
    """Pad the named inputs along time."""
    out = dict(inputs)
    for name in inputs.keys() & {*names}:
        value = inputs[name]
        if name == "tree_parents":
            out[name] = F.pad(torch.where(value < 0, value, value + left), (left, right), value=-1)
        elif name == "graph_edges":
            out[name] = F.pad(value, (left, right, left, right))
        elif name in VECTORS:
            out[name] = F.pad(value, (0, 0, left, right), value=0.5)
        else:
            out[name] = F.pad(value, (left, right), value=token if name.endswith("input_ids") else 0)
    return out


def gradient_gap(model: Any, *losses: Any) -> float:
    """Return the largest difference of the gradients of two losses."""
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
    pair = [torch.autograd.grad(loss, [*learned.values()], allow_unused=True) for loss in losses]
    for name, a, b in zip(learned, *pair, strict=True):
        if (a is None) != (b is None):
            raise Failed(f"{name} has a gradient in one of two equal losses only")
    return max((gap(a, b) for a, b in zip(*pair, strict=True) if a is not None), default=0.0)


def finite_outputs(model: Any, inputs: Mapping[str, Any], kernel: str = "auto") -> dict[str, tuple[Tensor, bool]]:
    """Return the outputs; raise if one is not finite or not in the model's dtype."""
    found = outputs(model, inputs, kernel)
    for key, (value, _) in found.items():
        name = str(model.dtype).removeprefix("torch.")
        if value.dtype != model.dtype:
            raise Failed(f"{key} is {value.dtype} in a model in {name}")
        if not bool(value.isfinite().all()):
            raise Failed(f"{key} is not finite in {name}")
    return found


def loss_of(model: Any, inputs: Mapping[str, Any]) -> Any:
    """Return the loss of the labels, or the squared distance of the outputs from fixed random targets."""
    routed = {"output_router_logits": True} if "output_router_logits" in model.inputs else {}
    out = call(model, inputs, **routed)
    loss = out.loss if out.mc_loss is None else out.loss + out.mc_loss  # two heads: the trainer adds their losses
    if loss is not None:
        return loss
    found = [value for value, _ in results(model.spec, out).values() if value.requires_grad]
    generator = torch.Generator().manual_seed(2)
    return sum(((v - torch.randn(v.shape, generator=generator)).square().mean() for v in found), torch.zeros(()))


def loss_and_gradients(model: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    loss = loss_of(model, inputs)
    if loss.requires_grad:
        loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return loss.detach(), found
