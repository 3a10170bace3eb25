"""Disentangled attention, talking heads, and sublayers that read the input of their block, against formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyformer as af
from anyformer.models import EncoderModel
from anyformer.parts.attention.attention import Attention
from anyformer.parts.attention.deberta import DebertaAttention
from anyformer.parts.attention.scores import TalkingHeads
from anyformer.parts.convolution.tokens import TokenConvolution
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.grid.pooled_attention import Skip
from anyformer.parts.init import Normal
from anyformer.parts.mask import FULL, Causal
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.disentangled import Disentangled
from anyformer.specs.part import Site
from anyformer.stacks.block import Block, Parallel
from anyformer.stacks.stack import Stack
from anyformer.stacks.step_kinds import BlockInputStep, ZeroedPadding
from anyformer.stacks.sublayer import Sublayer
from small import Weights, close, compiled_equals_eager, context, made

D, H, K, T = 24, 4, 6, 9
INIT = {"*": Normal(std=0.5)}
TEXT = TextEmbedding(tokens=Tokens(vocab_size=40))
IDS = torch.randint(0, 40, (2, T), generator=torch.Generator().manual_seed(0))


def scores(ours: Any, x: Tensor, G: int) -> Tensor:
    """(B, H, T, T) scores before softmax, pair by pair."""
    part, position = ours.part, ours.position
    table = position.table.weight if position.norm is None else position.norm(position.table.weight)
    to_q, to_k = (position.q, position.k) if part.position.own else (ours.q, ours.k)
    q, k = (t.unflatten(-1, (-1, K)) for t in (ours.q(x), ours.k(x)))
    found, most = torch.zeros(len(x), H, T, T), part.position.each_way
    for h in range(H):
        g = h // (H // G)
        for i in range(T):
            for j in range(T):
                r = min(max(i - j + most, 0), 2 * most - 1)
                vector, own = table[r], h if part.position.own else g
                term = (q[:, i, h] * k[:, j, g]).sum(-1)
                if part.position.by_query:
                    term = term + q[:, i, h] @ to_k(vector).view(-1, K)[own]
                if part.position.by_key:
                    term = term + k[:, j, g] @ to_q(vector).view(-1, K)[h]
                found[:, h, i, j] = term * ours.scale
    return found


@pytest.mark.parametrize(("buckets", "reach"), [(2, 8), (5, 9), (6, 10), (8, 64), (256, 512)])
def test_buckets_of_distances_as_published(buckets: int, reach: int) -> None:
    """Every distance, including those that share the last vector of their direction."""
    published = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    length = reach + 9
    wanted = published.make_log_bucket_position(torch.arange(1 - length, length), buckets, reach)
    part = Disentangled(num_heads=H, reach=reach, buckets=buckets)
    module = part.build(Site(width=K, address="here"))
    assert torch.equal(module.bucket(torch.arange(1 - length, length)), wanted.long())
    found = module.entries(context(length), torch.arange(length)[None], buckets)  # (1, T, S)
    theirs = published.build_relative_position(torch.zeros(length, 1), torch.zeros(length, 1), buckets, reach)
    assert torch.equal(found, (theirs + buckets).clamp(0, 2 * buckets - 1).long())


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("G", [H, 2])
@pytest.mark.parametrize("more", [
    {}, {"by_key": False}, {"by_query": False, "bias": ""}, {"own": False, "norm": LayerNorm()}, {"reach": 20},
    {"width": 10},
], ids=str)  # fmt: skip
def test_scores_are_those_of_every_pair(more: dict[str, Any], G: int, kernel: str) -> None:
    position = Disentangled(**{"num_heads": H, "reach": 4, **more})
    part = Attention(num_heads=H, num_kv_heads=G, position=position, scale=0.3)
    ours, x, seen = made(part, D), torch.randn(2, T, D), Weights()
    ours.address = "here"
    with torch.no_grad():
        out = ours(x, context(T, kernel=kernel, taps=seen))
        weights = scores(ours, x, G).softmax(-1)
        close(seen[0], weights, 1e-5)
        v = ours.v(x).unflatten(-1, (-1, K)).transpose(1, 2).repeat_interleave(H // G, dim=1)
        close(out, ours.o((weights @ v).transpose(1, 2).flatten(2)), 1e-5)
    if not more and kernel == "sdpa":
        compiled_equals_eager(lambda x: ours(x, context(T)), x)


@pytest.mark.parametrize(("buckets", "reach"), [(256, 512), (8, 96), (13, 96), (2, 512), (3, 64), (32, 20), (256, 100)])
def test_buckets_are_the_published_ones(buckets: int, reach: int) -> None:
    published = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    position, N = Disentangled(num_heads=1, reach=reach, buckets=buckets), 700
    ours = position.build(Site(width=4, address="here"))
    found = ours.entries(context(N), torch.arange(N), buckets)
    rows = torch.empty(1, N, 1)
    expected = published.build_relative_position(rows, rows, bucket_size=buckets, max_position=reach)
    assert torch.equal(found, (expected + buckets).clamp(0, 2 * buckets - 1))


def stack(position: Disentangled, depth: int = 3, mask: Any = FULL, **more: Any) -> Stack:
    op = Attention(num_heads=H, position=position, mask=mask)
    return Stack(**{"layers": Block(attention=Sublayer(op=op, pre_norm=LayerNorm())), "depth": depth, **more})


def test_the_first_layer_holds_the_distances_of_all() -> None:
    def model(shared: bool) -> Any:
        position = Disentangled(num_heads=H, reach=5, norm=LayerNorm(), shared=shared)
        return af.build(EncoderModel(width=D, embedding=TEXT, encoder=stack(position), init=INIT))

    one, each = model(True).eval(), model(False).eval()
    tables = [name for name, _ in one.named_parameters() if "table" in name or "position.norm" in name]
    assert {name.split(".")[2] for name in tables} == {"0"} and len(tables) == 3
    assert sum("table" in name for name, _ in each.named_parameters()) == 3
    state = one.state_dict()
    for name in each.state_dict().keys() - state.keys():
        state[name] = state[name.replace(f"layers.{name.split('.')[2]}", "layers.0")]
    each.load_state_dict(state)
    assert torch.equal(one(input_ids=IDS).last_hidden_state, each(input_ids=IDS).last_hidden_state)
    assert af.count(one.spec).parameters == sum(p.numel() for p in one.parameters())


@pytest.mark.parametrize(("change", "reason"), [
    ({"layer_drop": 0.1}, "layer_drop: .*shared=False"), ({"order": (1, 0)}, "order: .*shared=False"),
], ids=str)  # fmt: skip
def test_what_leaves_out_the_first_layer_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        stack(Disentangled(num_heads=H), depth=2, **change)
    stack(Disentangled(num_heads=H, shared=False), depth=2, **change)


def test_layers_that_disagree_are_refused() -> None:
    spec = EncoderModel(width=D, embedding=TEXT, encoder=stack(Disentangled(num_heads=H, reach=5)), init=INIT)
    path = "encoder.layers.1.attention.op.position"
    with pytest.raises(ValueError, match=r"the first layer shares parameters of .*shared=False"):
        af.override(spec, {f"{path}.reach": 6})
    with pytest.raises(ValueError, match=r"the first layer shares parameters of .*shared=False"):
        af.override(spec, {"encoder.layers.0.attention.op.position": Disentangled(
            num_heads=H, reach=5, by_query=False, by_key=False)})  # fmt: skip
    af.build(af.override(spec, {f"{path}.reach": 6, f"{path}.shared": False}))
    with pytest.raises(ValueError, match="share parameters of the first layer"):
        af.override(spec, {"encoder.layers.0.attention.op.position": None})
    every = "encoder.layers.attention.op"
    wide = af.override(spec, {f"{every}.head_width": 5, f"{every}.position.own": False})
    with pytest.raises(ValueError, match="position: Disentangled has vectors of width 20; set its width"):
        af.build(wide)
    af.build(af.override(wide, {f"{every}.position.width": D}))
    with pytest.raises(ValueError, match="Disentangled.bias is .*'qk'"):
        Disentangled(num_heads=H, bias="v")


def test_without_terms_vectors_are_kept_and_nothing_reads_them() -> None:
    position = Disentangled(num_heads=H, reach=5, by_query=False, by_key=False)
    model = af.build(EncoderModel(width=D, embedding=TEXT, encoder=stack(position), init=INIT))
    table = model.get_parameter("encoder.layers.0.attention.op.position.table.weight")
    assert table.shape == (10, D) and not table.requires_grad
    plain = af.build(af.override(model.spec, {"encoder.layers.attention.op.position": None}))
    assert torch.equal(model(input_ids=IDS).last_hidden_state, plain(input_ids=IDS).last_hidden_state)


# -- talking heads -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["auto", "eager", "sdpa"])
def test_heads_mix_scores_and_weights(kernel: str) -> None:
    ours, x = made(Attention(num_heads=H, scores=(TalkingHeads(),), mask=Causal()), D), torch.randn(2, T, D)
    q, k, v = (each(x).unflatten(-1, (H, K)).transpose(1, 2) for each in (ours.q, ours.k, ours.v))
    scores = torch.einsum("bhts,gh->bgts", q @ k.transpose(2, 3) * K**-0.5, ours.scores[0].scores.weight)
    weights = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf).softmax(-1)
    weights, seen = torch.einsum("bhts,gh->bgts", weights, ours.scores[0].weights.weight), Weights()
    ours.address = "here"
    close(ours(x, context(T, kernel=kernel, taps=seen)), ours.o((weights @ v).transpose(1, 2).flatten(2)), 1e-5)
    close(seen[0], weights, 1e-5)


def test_dropout_falls_between_softmax_and_the_mix(monkeypatch) -> None:
    ours, x = made(Attention(num_heads=H, scores=(TalkingHeads(),), dropout=0.5), D), torch.randn(2, T, D)
    dropped: list[Tensor] = []
    monkeypatch.setattr("torch.nn.functional.dropout", lambda x, *_: dropped.append(x) or x)
    plain = ours(x, context(T))
    assert not dropped
    close(ours.train()(x, context(T)), plain)
    (weights,) = dropped
    close(weights.sum(-1), torch.ones(2, H, T), 1e-5)


def test_a_pad_sees_the_mean_of_all_values() -> None:
    ours, x = made(DebertaAttention(num_heads=H, num_kv_heads=2), D), torch.randn(2, T, D)
    real = torch.ones(2, T, dtype=torch.bool)
    real[1, 6:] = False
    plain = made(Attention(num_heads=H, num_kv_heads=2), D)
    found, usual = (each(x, context(T, is_token=real)) for each in (ours, plain))
    assert torch.equal(found[real], usual[real])
    mean = ours.v(x).mean(1).unflatten(-1, (2, K)).repeat_interleave(2, dim=1).flatten(1)
    close(found[~real], ours.o(mean)[1].expand(3, -1), 1e-5)
    with pytest.raises(ValueError, match=r"DebertaAttention: .*mask=Full\(\)"):
        DebertaAttention(num_heads=H, mask=Causal())


# -- a convolution parallel to a layer ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("kernel", "groups"), [(3, 1), (5, 4), (1, 2), (4, 1)])
def test_a_convolution_is_torchs_and_keeps_to_its_document(kernel: int, groups: int) -> None:
    ours, x = made(TokenConvolution(kernel=kernel, groups=groups, activation="gelu"), D), torch.randn(2, T, D)
    theirs = nn.Conv1d(D, D, kernel, groups=groups)
    theirs.load_state_dict(ours.taps.state_dict())

    def expected(x: Tensor) -> Tensor:
        padded = nn.functional.pad(x.transpose(1, 2), ((kernel - 1) // 2, kernel // 2))
        return nn.functional.gelu(theirs(padded)).transpose(1, 2)

    close(ours(x, context(T)), expected(x), 1e-5)
    real = torch.ones(2, T, dtype=torch.bool)
    real[1, :3] = False
    close(ours(x, context(T, is_token=real))[1, 3:], expected(x[1:, 3:])[0], 1e-5)
    documents = torch.tensor([[0] * 4 + [1] * 5, [0] * 2 + [1] * 3 + [2] * 4])
    found = ours(x, context(T, documents=documents))
    for row, lengths in ((0, (4, 5)), (1, (2, 3, 4))):
        close(found[row], torch.cat([expected(piece[None])[0] for piece in x[row].split(lengths)]), 1e-5)


def test_a_step_may_read_what_came_into_its_block() -> None:
    convolution = BlockInputStep(op=TokenConvolution(), out_norm=LayerNorm())
    steps = {"feedforward": Sublayer(op=MLP(width=8), out_norm=LayerNorm()), "convolution": convolution}
    ours, x = made(Block(**steps), D), torch.randn(2, T, D)
    real = torch.ones(2, T, dtype=torch.bool)
    real[1, 6:] = False
    ctx = context(T, is_token=real)
    found = ours(x, ctx)
    last = ours.convolution
    joined = last.out_norm(ours.feedforward(x, ctx) + last.op(x, ctx))
    close(found[real], joined[real])
    assert not found[~real].any()
    before = made(Block(**{**steps, "convolution": convolution.as_kind(ZeroedPadding)}), D)
    assert not torch.allclose(before(x, ctx)[real], found[real])
    with pytest.raises(ValueError, match="Parallel.convolution: this BlockInputStep does not only add"):
        Parallel(convolution=convolution)
    wider = Sublayer(op=MLP(width=8, out=2 * D), skip=Skip())
    with pytest.raises(ValueError, match="Block.convolution: BlockInputStep reads the Block's input"):
        Block(feedforward=wider, convolution=convolution)
