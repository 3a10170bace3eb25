"""Residual connections against their formulas, and their initialisations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.models import DecoderModel, EncoderModel
from anyformer.parts import init
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.init import Normal
from anyformer.parts.norm import LayerNorm
from anyformer.parts.residual import Add, Fixup, LayerScale, ReZero, Scaled, deepnorm
from anyformer.runtime.context import Context
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from small import close, made

D = 16


def join(part: Any, x: Tensor, branch: Tensor) -> tuple[Any, Tensor]:
    module = made(part, D)
    return module, module(x, branch)


def test_formulas() -> None:
    x, f = torch.randn(2, 3, D), torch.randn(2, 3, D)
    close(join(Add(), x, f)[1], x + f)
    close(join(Scaled(skip=1.7, branch=0.5), x, f)[1], 1.7 * x + 0.5 * f)
    close(join(Scaled(branch=0.5), x, f)[1], x + f / 2)  # the Conformer's half-step
    for part in (ReZero(), LayerScale(start=0.1)):
        module, out = join(part, x, f)
        close(out, x + module.weight * f)
    module, out = join(Fixup(), x, f)
    close(out, x + module.weight * f + module.bias)
    assert made(LayerScale(), D).weight.shape == (D,) and made(ReZero(), D).weight.shape == ()


def block(residual: Any, **norms: Any) -> Block:
    return Block(
        attention=Sublayer(op=Attention(num_heads=2), residual=residual, **norms),
        feedforward=Sublayer(op=MLP(width=32, activation="relu"), residual=residual, **norms),
    )


def model_of(residual: Any, rules: dict[str, Any], kind: Any = EncoderModel, depth: int = 3, **norms: Any) -> Any:
    name = "encoder" if kind is EncoderModel else "decoder"
    stack = Stack(layers=block(residual, **norms), depth=depth)
    embedding = TextEmbedding(tokens=Tokens(vocab_size=9))
    return af.build(kind(width=D, embedding=embedding, init={**rules, "*": Normal(std=0.02)}, **{name: stack}))


STARTS: list[tuple[Any, dict[str, float]]] = [
    (ReZero(), {"weight": 0.0}), (LayerScale(start=0.25), {"weight": 0.25}), (Fixup(), {"weight": 1.0, "bias": 0.0}),
]  # fmt: skip


@pytest.mark.parametrize(("residual", "starts"), STARTS, ids=repr)
def test_published_start(residual: Any, starts: dict[str, float]) -> None:
    model = model_of(residual, {})
    for name, value in starts.items():
        parameter = getattr(model.encoder.layers[2].feedforward.residual, name)
        assert torch.equal(parameter, torch.full_like(parameter, value))
    other = model_of(residual, {"*.residual.weight": init.Value(value=0.5)})
    assert (other.encoder.layers[0].attention.residual.weight == 0.5).all(), "a rule of the description has priority"


@pytest.mark.parametrize("residual", [ReZero()])
def test_rezero_is_the_identity_at_first(residual: Any) -> None:
    model, x = model_of(residual, {}), torch.randn(1, 4, D)
    index = torch.arange(4)
    close(model.encoder(x, Context(index=index, positions=index[None]))[0], x)


def test_deepnorm_table() -> None:
    """Wang et al. 2022, table 1."""
    N, M = 18, 6
    assert deepnorm(encoder=N) == {"encoder": ((2 * N) ** 0.25, (8 * N) ** -0.25)}
    assert deepnorm(decoder=M) == {"decoder": ((2 * M) ** 0.25, (8 * M) ** -0.25)}
    both = deepnorm(encoder=N, decoder=M)
    assert both["encoder"] == pytest.approx((0.81 * (N**4 * M) ** (1 / 16), 0.87 * (N**4 * M) ** (-1 / 16)))
    assert both["decoder"] == pytest.approx(((3 * M) ** 0.25, (12 * M) ** -0.25))
    for bad in ({}, {"encoder": -1}, {"encoder": 3, "decoder": -1}):
        with pytest.raises(ValueError, match="deepnorm needs encoder or decoder layers"):
            deepnorm(**bad)


def test_deepnorm_in_a_model() -> None:
    depth = 3
    alpha, beta = deepnorm(decoder=depth)["decoder"]
    rules = init.deepnorm(decoder=beta)
    model = model_of(Scaled(skip=alpha), rules, DecoderModel, depth, out_norm=LayerNorm())
    x, index = torch.randn(1, 4, D), torch.arange(4)
    ctx = Context(index=index, positions=index[None])
    layer = model.decoder.layers[0]
    step = layer.attention
    close(step(x, ctx), torch.nn.functional.layer_norm(alpha * x + step.op(x, ctx), (D,)))
    for name, gain in {"q": 1, "k": 1, "v": beta, "o": beta}.items():  # Xavier's std for D -> D is gain / sqrt(D)
        stds = [float(getattr(one.attention.op, name).weight.detach().std()) for one in model.decoder.layers]
        assert sum(stds) / depth == pytest.approx(gain / math.sqrt(D), rel=0.15), name
    for name in ("up", "down"):
        stds = [float(getattr(one.feedforward.op, name).weight.detach().std()) for one in model.decoder.layers]
        assert sum(stds) / depth == pytest.approx(beta * math.sqrt(2 / (D + 32)), rel=0.15), name


def test_fixup_in_a_model() -> None:
    depth = 8
    model = model_of(Fixup(), init.fixup("encoder", branches=2 * depth), depth=depth)
    layers = model.encoder.layers
    assert not any(layer.attention.op.o.weight.any() or layer.feedforward.op.down.weight.any() for layer in layers)
    std = sum(float(layer.feedforward.op.up.weight.detach().std()) for layer in layers) / depth
    assert std == pytest.approx(math.sqrt(2 / D) * (2 * depth) ** -0.5, rel=0.1)
    with pytest.raises(ValueError, match="branches >= 1 and layers >= 2"):
        init.fixup("encoder", branches=2, layers=1)
