"""Norms against torch.nn and their formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import anyformer as af
from anyformer.models import EncoderModel
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.init import Normal
from anyformer.parts.norm import BatchNorm, LayerNorm, RMSNorm, ScaleNorm, UnitNorm
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from small import close, filled, made

D = 24


def inputs(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, D) * 3 + 1


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("eps", [1e-5, 0.3])
def test_layer_norm(bias: bool, eps: float) -> None:
    ours = made(LayerNorm(eps=eps, bias=bias), D)
    theirs = nn.LayerNorm(D, eps=eps, bias=bias)
    theirs.load_state_dict(ours.state_dict())
    x = inputs(2, 5)
    close(ours(x), theirs(x))


@pytest.mark.parametrize("eps", [1e-6, 0.3])
def test_rms_norm(eps: float) -> None:
    ours = made(RMSNorm(eps=eps), D)
    theirs = nn.RMSNorm(D, eps=eps)
    theirs.load_state_dict(ours.state_dict())
    x = inputs(2, 5)
    close(ours(x), theirs(x))
    close(ours(x), x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * ours.weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_unit_norm(dtype: torch.dtype) -> None:
    """Zeros give zeros, also in half precision, where torch's default eps rounds to 0 and gives NaN."""
    norm, x = made(UnitNorm(), D), inputs(2, 5).to(dtype)
    assert not list(norm.parameters()) and norm(x).dtype == dtype
    close(norm(x).double(), x.double() / x.double().norm(dim=-1, keepdim=True), 1e-3 if dtype.itemsize == 2 else 1e-6)
    assert torch.equal(norm(torch.zeros(3, D, dtype=dtype)), torch.zeros(3, D, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rms_norm_in_half_precision_equals_llamas(dtype: torch.dtype) -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    ours = made(RMSNorm(eps=1e-6), D).to(dtype)
    theirs = LlamaRMSNorm(D, eps=1e-6).to(dtype)
    theirs.load_state_dict(ours.state_dict())
    x = (inputs(2, 5) * 100).to(dtype)  # squares would overflow in fp16
    assert torch.equal(ours(x), theirs(x)) and ours(x).isfinite().all()


def test_scale_norm() -> None:
    ours, x = made(ScaleNorm(eps=1e-5), D), inputs(2, 5)
    close(ours(x), ours.weight * x / x.norm(dim=-1, keepdim=True))
    assert ours(torch.zeros(1, 1, D)).isfinite().all()


def test_batch_norm_is_over_batch_and_time() -> None:
    ours, theirs = made(BatchNorm(eps=1e-3, momentum=0.3), D), filled(nn.BatchNorm1d(D, eps=1e-3, momentum=0.3))
    x = inputs(3, 5)
    for module in (ours, theirs):
        module.train()
    close(ours(x), theirs(x.transpose(1, 2)).transpose(1, 2))
    close(ours.running_mean, theirs.running_mean)
    close(ours.running_var, theirs.running_var)
    close(ours.eval()(x), theirs.eval()(x.transpose(1, 2)).transpose(1, 2))


STARTS: list[tuple[Any, float]] = [(LayerNorm(), 1.0), (RMSNorm(), 1.0), (BatchNorm(), 1.0), (ScaleNorm(), D**0.5)]


@pytest.mark.parametrize(("norm", "start"), STARTS, ids=repr)
def test_a_fresh_norm_normalises(norm: Any, start: float) -> None:
    """In a model, the description's `*` rule must not apply to it."""
    steps = Block(step=Sublayer(op=MLP(width=8), pre_norm=norm))
    spec = EncoderModel(
        width=D, embedding=TextEmbedding(tokens=Tokens(vocab_size=5)), encoder=Stack(layers=steps, depth=1),
        init={"*": Normal(std=0.02)},
    )  # fmt: skip
    module = af.build(spec).encoder.layers[0].step.pre_norm.train()
    assert torch.allclose(module.weight, torch.full_like(module.weight, start))
    x = inputs(40, 50)
    assert module(x).detach().square().mean().sqrt() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm, ScaleNorm, BatchNorm])
def test_nonsense(kind: Any) -> None:
    with pytest.raises(ValueError, match=f"{kind.__name__}.eps is -1.0; it must be at least 0"):
        kind(eps=-1.0)
    with pytest.raises(ValueError, match="momentum is 2.0"):
        BatchNorm(momentum=2.0)
