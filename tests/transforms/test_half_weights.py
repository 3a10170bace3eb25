"""Weights cast once per step: the same results as autocast, in fewer operations."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import anyformer as af
from anyformer.parts.residual import Add
from anyformer.transforms.fuse import fuse
from anyformer.transforms.half_weights import HalfWeights
from anyformer.transforms.recompute import recompute
from tiny import inputs_of, model_of


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[op.overloadpacket.__name__] += 1
        return op(*args, **kwargs or {})


def step(model: torch.nn.Module, family: str, cast: bool) -> tuple[dict[str, torch.Tensor], Counter[str]]:
    inputs = inputs_of(family)
    labels = inputs.pop("decoder_input_ids", inputs["input_ids"])
    half = HalfWeights(model)(torch.bfloat16) if cast else contextlib.nullcontext()
    torch.manual_seed(3)
    with Operations() as operations, torch.autocast("cpu", torch.bfloat16), half:
        loss = model(**inputs, labels=labels).loss
        loss.backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None} | {
        "loss": loss.detach()
    }, operations.counts


def test_blocks_with_an_fp32_stream_are_not_cast() -> None:
    """A block with an fp32 stream rounds its input to the dtype of its first weight, which a cast would change."""
    spec = af.override(model_of("llama").spec, {"decoder.layers.feedforward.residual": Add(float32=True)})
    assert HalfWeights(model_of("llama").train()).places and not HalfWeights(af.build(spec).train()).places


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "t5"])
@pytest.mark.parametrize("change", ["plain", "fused", "recomputed"])
def test_the_numbers_are_those_of_autocast(family: str, change: str) -> None:
    changes = {"plain": lambda m: m, "fused": lambda m: fuse(m, training=True), "recomputed": recompute}
    found = []
    for cast in (False, True):
        model = changes[change](model_of(family).train())
        before = dict(model.named_parameters())
        found.append(step(model, family, cast))
        after = dict(model.named_parameters())
        assert before.keys() == after.keys() and all(after[name] is p for name, p in before.items())
    (expected, many), (same, few) = found
    assert expected.keys() == same.keys()
    for name, value in expected.items():
        assert value.dtype == same[name].dtype and torch.equal(value, same[name]), name
    linears = sum(type(m) is torch.nn.Linear for m in model.modules())
    assert few["_foreach_copy_"] == 2 and few["_to_copy"] <= many["_to_copy"] - linears


def test_tied_and_frozen_weights_are_left_alone() -> None:
    model = model_of("gpt2")
    everything = len(HalfWeights(model).places)
    model.decoder.layers[0].attention.op.q.weight.requires_grad_(False)
    model.decoder.layers[1].attention.op.k.weight = model.decoder.layers[1].attention.op.v.weight
    assert len(HalfWeights(model).places) == everything - 3


def test_weights_are_back_after_an_error() -> None:
    model = model_of("gpt2")
    before = dict(model.named_parameters())
    with pytest.raises(KeyError), HalfWeights(model)(torch.bfloat16):
        assert model.decoder.layers[0].attention.op.q.weight.dtype == torch.bfloat16
        raise KeyError
    assert all(p is before[name] for name, p in model.named_parameters())
