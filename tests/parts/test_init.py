"""Initialisation depends only on the seed and the address, and fills every parameter."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import families
from anyformer.models import DecoderModel
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.language import LMHead
from anyformer.parts.init import Initializer, Kaiming, Normal, Uniform, Value, Xavier
from anyformer.parts.mask import Causal
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.absolute import Learned
from anyformer.specs.part import walk
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from small import filled_with_nan

D = 64


def spec_of(init: dict[str, Initializer] | None = None, depth: int = 3, **more: Any) -> DecoderModel:
    norm = LayerNorm()
    block = Block(
        attention=Sublayer(op=Attention(num_heads=4, mask=Causal()), pre_norm=norm),
        feedforward=Sublayer(op=MLP(width=4 * D), pre_norm=norm),
    )
    return DecoderModel(
        width=D, embedding=TextEmbedding(tokens=Tokens(vocab_size=100), position=Learned(length=50)),
        decoder=Stack(layers=block, depth=depth, norm=norm), head=LMHead(vocab_size=100),
        init={"*": Normal(std=0.02)} if init is None else init, **more,
    )  # fmt: skip


def weights(spec: Any, **options: Any) -> dict[str, torch.Tensor]:
    return dict(af.build(spec, **options).state_dict())


def test_one_seed_one_model() -> None:
    a, b, c = weights(spec_of(), seed=3), weights(spec_of(), seed=3), weights(spec_of(), seed=4)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not any(torch.equal(a[n], c[n]) for n in a if not n.endswith("bias") and "norm" not in n)


def test_the_global_generator_is_neither_read_nor_moved() -> None:
    torch.manual_seed(0)
    a, after = weights(spec_of()), torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(3), after)
    torch.manual_seed(99)
    b = weights(spec_of())
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_other_layers_change_nothing() -> None:
    """A weight depends on the seed and its address, not on what is built before it."""
    short, long = weights(spec_of(depth=2)), weights(spec_of(depth=5))
    assert all(torch.equal(long[name], short[name]) for name in short)
    steps = dict(spec_of().decoder.layers.items())
    other = Block(feedforward=steps["feedforward"], attention=steps["attention"])
    turned = af.override(spec_of(), {"decoder.layers": other})
    a, b = weights(spec_of()), weights(turned)
    assert set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)


def test_no_two_parameters_are_alike() -> None:
    drawn = [t for n, t in weights(spec_of()).items() if t.dim() > 1 and t.shape == (D, D)]
    assert len(drawn) == 12
    assert len({float(t[0, 0]) for t in drawn}) == 12


def test_defaults_and_order_of_rules() -> None:
    rules = {"*.up.weight": Value(value=2.0), "*.weight": Value(value=3.0), "decoder.layers.0.*": Value(value=4.0)}
    got = weights(spec_of({**rules, "*": Value(value=9.0)}))
    assert (got["decoder.layers.0.feedforward.op.up.weight"] == 2).all(), "the first pattern wins"
    assert (got["decoder.norm.weight"] == 3).all(), "a pattern of the description has priority over the defaults"
    assert (got["decoder.layers.0.attention.op.q.bias"] == 4).all()
    assert (got["decoder.layers.1.attention.op.q.bias"] == 0).all(), "a default has priority over '*'"
    plain = weights(spec_of({"*": Value(value=9.0)}))
    assert (plain["decoder.norm.weight"] == 1).all() and (plain["embedding.position.weight"] == 9).all()
    # '*' has the lowest priority, wherever it is written
    first = weights(spec_of({"*": Value(value=9.0), **rules}))
    assert all(torch.equal(first[name], got[name]) for name in got)


def test_a_parameter_that_no_rule_names() -> None:
    with pytest.raises(ValueError, match="embedding.tokens.weight: no initialisation rule .* init="):
        weights(spec_of({"*.o.weight": Value(value=0.0)}))
    with pytest.raises(ValueError, match="embedding.tokens.weight: "):
        weights(spec_of({"embedding.tokens.weight": Broken(), "*": Normal(std=1.0)}))


class Broken(Initializer):
    def fill(self, tensor: torch.Tensor, generator: torch.Generator, depth: int) -> None:
        raise ValueError("no")


@pytest.mark.parametrize(("rule", "mean", "std"), [
    (Normal(std=0.3), 0.0, 0.3),
    (Normal(std=0.3, mean=1.0), 1.0, 0.3),
    (Normal(std=0.3, residual=True), 0.0, 0.3 / math.sqrt(2 * 3)),
    (Uniform(low=-1.0, high=3.0), 1.0, 4 / math.sqrt(12)),
    (Value(value=0.7), 0.7, 0.0),
    (Xavier(), 0.0, math.sqrt(2 / (5 * D))),
    (Xavier(gain=0.5, normal=True), 0.0, 0.5 * math.sqrt(2 / (5 * D))),
    (Kaiming(), 0.0, math.sqrt(2 / D)),
    (Kaiming(gain=1.0, normal=False), 0.0, math.sqrt(1 / D)),
], ids=repr)  # fmt: skip
def test_distributions(rule: Initializer, mean: float, std: float) -> None:
    """The same as torch.nn.init for the matrix D -> 4 D."""
    spec = spec_of({"*.up.weight": rule, "*": Normal(std=1.0)})
    matrix = weights(spec)["decoder.layers.1.feedforward.op.up.weight"]
    assert matrix.mean() == pytest.approx(mean, abs=0.03 * std + 1e-6)
    assert matrix.std() == pytest.approx(std, rel=0.02, abs=1e-6)
    rule.fill(torch.empty(1, D), torch.Generator(), 1)  # a matrix of one row


def test_a_tied_parameter_follows_its_owner() -> None:
    ties = (("head.out.weight", "embedding.tokens.weight"),)
    rules = {"head.*": Value(value=5.0), "*": Normal(std=0.02)}
    tied, untied = af.build(spec_of(rules, ties=ties)), af.build(spec_of(rules))
    assert tied.head.out.weight is tied.embedding.tokens.weight
    assert torch.equal(tied.embedding.tokens.weight, untied.embedding.tokens.weight)
    assert (untied.head.out.weight == 5).all()


def test_the_padding_row_is_zero() -> None:
    spec = af.override(spec_of(), {"embedding.tokens.padding_index": 7})
    table = weights(spec)["embedding.tokens.weight"]
    assert not table[7].any() and table[6].any()


@pytest.mark.slow  # N8 checks the same for tiny models of every family
@pytest.mark.parametrize("model_type", sorted(families.catalogue()))
def test_every_family_fills_every_parameter(model_type: str) -> None:
    """Each named description with two layers: no NaN remains in memory that was filled with NaN."""
    family = families.catalogue()[model_type]
    for name in list(family.sizes)[:1]:
        spec = af.spec(name)
        # layers that run more than once (ALBERT) are few already
        stacks = [(path, part) for path, part in walk(spec) if hasattr(part, "depth")]
        shrink = {path: 2 for path, part in stacks if getattr(part, "order", None) is None}
        small = af.override(spec, {f"{path}.depth" if path else "depth": n for path, n in shrink.items()})
        if sum(p.numel() for p in af.build(small, device="meta").parameters()) > 200e6:
            pytest.skip("two layers are too large for this machine")
        with filled_with_nan():
            model = af.build(small)
        for address, tensor in model.state_dict().items():
            assert not tensor.is_floating_point() or tensor.isfinite().all(), address
