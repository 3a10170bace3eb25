"""Ways to pool: each selects the right vectors, and a description can name any of them.

B batch, T tokens, D width.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyformer as af
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.attention_pool import AttentionPool
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.pool import STRINGS, Pool
from anyformer.parts.head.pooling import (
    FirstOccurrence,
    FirstToken,
    HighestId,
    LastColumn,
    LastOccurrence,
    LastToken,
    MeanColumns,
    MeanTokens,
    Pooling,
)
from anyformer.parts.norm import LayerNorm
from anyformer.parts.unused import Unused
from anyformer.runtime.context import Context
from anyformer.specs.part import Site
from anyformer.weights.rules import same_names
from swaps import plain

D, T = 8, 5
X = torch.randn(2, T, D, generator=torch.Generator().manual_seed(0))
REAL = torch.tensor([[0, 1, 1, 1, 0], [1, 1, 1, 0, 0]]).bool()
IDS = torch.tensor([[9, 4, 7, 4, 0], [4, 7, 4, 0, 0]])


def pooled(part: Pooling, is_token: Tensor | None = REAL) -> Tensor:
    index = torch.arange(T)
    ctx = Context(index=index, positions=index[None], is_token=is_token)
    return part.build(Site(width=D))(X, ctx, {"input_ids": IDS})


@pytest.mark.parametrize(("part", "where"), [
    (FirstToken(), (1, 0)), (LastToken(padding_token=0), (3, 2)), (LastOccurrence(token=4), (3, 2)),
    (LastOccurrence(token=7), (2, 1)), (FirstOccurrence(token=4), (1, 0)), (FirstOccurrence(token=7), (2, 1)),
    (FirstOccurrence(token=5), (1, 0)), (HighestId(), (2, 1)), (LastColumn(), (4, 4)),
])  # fmt: skip
def test_the_vector_of_one_token(part: Pooling, where: tuple[int, int]) -> None:
    assert torch.equal(pooled(part), X[torch.arange(2), torch.tensor(where)])


@pytest.mark.parametrize(("part", "counted"), [
    (MeanTokens(), REAL), (MeanColumns(), torch.ones(2, T)),
    (MeanColumns(skip=2), torch.tensor([0, 0, 1, 1, 1]).expand(2, T)),
])  # fmt: skip
def test_the_mean_of_tokens(part: Pooling, counted: Tensor) -> None:
    expected = torch.stack([x[kept.bool()].mean(0) for x, kept in zip(X, counted)])
    torch.testing.assert_close(pooled(part), expected)


def test_without_padding() -> None:
    assert torch.equal(pooled(FirstToken(), None), X[:, 0])
    torch.testing.assert_close(pooled(MeanTokens(), None), X.mean(1))


def test_attention_pooling_is_that_of_torch() -> None:
    torch.manual_seed(0)
    part = AttentionPool(num_heads=2, norm=LayerNorm(), feedforward=MLP(width=12, activation="gelu_tanh"))
    module = part.build(Site(width=D))
    nn.init.normal_(module.probe)
    attention = nn.MultiheadAttention(D, 2, batch_first=True)
    with torch.no_grad():
        for name in ("weight", "bias"):
            stacked = torch.cat([getattr(getattr(module.attention, each), name) for each in "qkv"])
            getattr(attention, f"in_proj_{name}").copy_(stacked)
            getattr(attention.out_proj, name).copy_(getattr(module.attention.o, name))
    index = torch.arange(T)
    h = attention(module.probe.expand(2, 1, D), X, X, key_padding_mask=~REAL)[0]
    expected = (h + module.feedforward(module.norm(h), None))[:, 0]
    found = module(X, Context(index=index, positions=index[None], is_token=REAL), {})
    torch.testing.assert_close(found, expected)


# -- in a description --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("take", STRINGS)
def test_a_string_of_an_earlier_version_is_refused_with_the_part(take: str) -> None:
    with pytest.raises(ValueError, match=rf"^Pool\.take is a Part: write {STRINGS[take]['kind']}\(.*'{take}'$"):
        Pool(take=take)  # type: ignore[arg-type]


def test_the_fields_of_an_earlier_version_are_in_the_message() -> None:
    with pytest.raises(ValueError, match=r"write LastToken\(padding_token=3\) instead of 'last'$"):
        Pool(take="last", padding_token=3)  # type: ignore
    with pytest.raises(ValueError, match=r"write MeanColumns\(skip=1\) instead of 'rest'$"):
        Pool(take="rest")  # type: ignore[arg-type]


@pytest.mark.parametrize(("value", "line"), [
    ("mean", r"^head\.pool\.take is a Part: write MeanTokens\(\) instead of 'mean'"),
    ("MeanTokens", r"take: MeanTokens is not of type Pooling; write {\"kind\": \"MeanTokens\"}"),
    ({"kind": "MeanToken"}, r"did you mean 'MeanTokens'"),
])  # fmt: skip
def test_a_wrong_override_names_the_part(value: Any, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        af.override(plain(head=ClassifyHead(num_labels=2, pool=Pool())), {"head.pool.take": value})


def test_overrides_and_addresses() -> None:
    spec = af.override(plain(head=ClassifyHead(num_labels=2, pool=Pool())), {"head.pool.take": {"kind": "LastToken"}})
    spec = af.override(spec, {"head.pool.take.padding_token": 3})
    assert spec.head.pool == Pool(take=LastToken(padding_token=3))
    model = af.build(af.override(spec, {"head.pool.take": {"kind": "AttentionPool", "num_heads": 2}}))
    assert {"head.pool.take.probe", "head.pool.take.attention.q.weight"} < {*dict(model.named_parameters())}


class Middle(Pooling):
    """The vector in the middle."""

    def pool(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        return x[:, x.shape[1] // 2]


def test_a_new_way_to_pool_is_one_class() -> None:
    assert torch.equal(pooled(Middle()), X[:, 2])
    model = af.build(plain(head=ClassifyHead(num_labels=2, pool=Pool(take=Middle()))), seed=0).eval()
    states = af.trace(model, keep=["head.pool.take", "decoder.normed"], input_ids=IDS)
    assert torch.equal(states["head.pool.take"], states["decoder.normed"][:, 2])


def test_a_norm_that_is_stored_but_not_used() -> None:
    spec = plain(head=ClassifyHead(num_labels=2, pool=Pool(norm=Unused(part=LayerNorm()))))
    model, without = af.build(spec, seed=0).eval(), af.build(af.override(spec, {"head.pool.norm": None}), seed=0).eval()
    nn.init.normal_(model.head.pool.norm.part.weight)
    assert torch.equal(model(input_ids=IDS).logits, without(input_ids=IDS).logits)


def test_tensor_names_of_earlier_versions_are_found() -> None:
    now = ["head.pool.take.seeds.vectors", "head.pool.norm.part.weight", "head.pool.dense.weight"]
    old = ["head.pool.seeds.vectors", "head.pool.norm.weight", "head.pool.dense.weight"]
    assert same_names(None, old, now).names == dict(zip(now, old, strict=True))
