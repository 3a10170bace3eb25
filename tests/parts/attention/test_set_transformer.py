"""The Set Transformer's blocks and Luna against their formulas, using torch's attention; padding and order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import anyformer as af
from anyformer.models import EncoderModel
from anyformer.parts.attention.set_transformer import InducedAttention, LunaAttention, Seeds
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.grid.windows import Windows
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.pooling import SeedPool
from anyformer.parts.head.tag import TagHead
from anyformer.parts.init import Normal
from anyformer.parts.norm import LayerNorm
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.transforms.recompute import recompute
from small import close, context, filled, made

D, H, M, T = 12, 3, 4, 7
INNER = MLP(width=20, activation="relu")
SEEDS = Seeds(num_heads=2, count=M, feedforward=INNER)
INDUCED = InducedAttention(num_heads=H, points=SEEDS)
LUNA = LunaAttention(num_heads=H, tokens=M)
OPS = {"induced": INDUCED, "luna": LUNA, "luna apart": LUNA.replace(handed_on=False)}
over_ops = pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))


def torch_attention(module: Any, x: Tensor, others: Tensor, pads: Tensor | None = None) -> Tensor:
    """Compute with torch.nn.MultiheadAttention and the weights of our module."""
    theirs = nn.MultiheadAttention(D, module.part.num_heads, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([getattr(module, name).weight for name in "qkv"]))
        theirs.in_proj_bias.copy_(torch.cat([getattr(module, name).bias for name in "qkv"]))
        theirs.out_proj.load_state_dict(module.o.state_dict())
    return theirs(x, others, others, key_padding_mask=pads, need_weights=False)[0]


def rff(module: Any, x: Tensor) -> Tensor:
    return module.down(F.relu(module.up(x)))


def mab(seeds: Any, s: Tensor, x: Tensor, pads: Tensor | None = None) -> Tensor:
    """LayerNorm(h + rFF(h)) of h = LayerNorm(s + Multihead(s, x, x)) [Lee et al. 2019, equations 6 and 7]"""
    h = seeds.norm(s + torch_attention(seeds.attention, s, x, pads))
    return seeds.out_norm(h + rff(seeds.feedforward, h))


def model(op: Any, depth: int = 3, head: Any = None, **more: Any) -> Any:
    block = Block(attention=Sublayer(op=op, out_norm=LayerNorm()), feedforward=Sublayer(op=INNER, out_norm=LayerNorm()))
    embedding, stack = TextEmbedding(tokens=Tokens(vocab_size=40)), Stack(layers=block, depth=depth, **more)
    spec = EncoderModel(width=D, embedding=embedding, encoder=stack, head=head, init={"*": Normal(std=0.3)})
    return filled(af.build(spec))


def text(length: int = T, batch: int = 2) -> Tensor:
    return torch.randint(1, 40, (batch, length), generator=torch.Generator().manual_seed(length))


# -- formulas ----------------------------------------------------------------------------------------------------------


def test_induced_set_attention_block() -> None:
    """ISAB(x) = MAB(x, MAB(i, x)): the block adds the outer residual, norms and feed-forward."""
    whole, x = model(INDUCED, depth=1), torch.randn(2, T, D)
    layer = whole.encoder.layers[0]
    points, op = layer.attention.op.points, layer.attention.op
    h = mab(points, points.vectors.expand(2, -1, -1), x)
    outer = layer.attention.out_norm(x + torch_attention(op.attention, x, h))
    expected = layer.feedforward.out_norm(outer + rff(layer.feedforward.op, outer))
    close(whole(inputs_embeds=x).last_hidden_state, expected)


@pytest.mark.parametrize("count", [1, 3])
def test_pooling_by_multi_head_attention(count: int) -> None:
    """PMA(z) = MAB(s, rFF(z)), over real tokens only; the order of the tokens does not matter."""
    module = made(SEEDS.replace(count=count, before=INNER), D)
    x, real = torch.randn(2, T, D), torch.ones(2, T, dtype=torch.bool)
    real[1, 4:] = False
    expected = mab(module, module.vectors.expand(2, -1, -1), rff(module.before, x), ~real)
    found = module(x, context(T, is_token=real))
    assert found.shape == (2, count, D)
    close(found, expected)
    order = torch.randperm(T)
    close(module(x[:, order], context(T, is_token=real[:, order])), expected)


def test_pool_of_a_head() -> None:
    pool = Pool(take=SeedPool(seeds=SEEDS), dense=True, activation="tanh")
    whole, ids = model(INDUCED, head=ClassifyHead(num_labels=3, pool=pool)), text()
    states = model(INDUCED)(input_ids=ids).last_hidden_state
    part = whole.head.pool
    seen = mab(part.take.seeds, part.take.seeds.vectors.expand(2, -1, -1), states)
    close(whole(input_ids=ids).logits, whole.head.out(torch.tanh(part.dense(seen.flatten(1)))))


def test_luna() -> None:
    """Y_P = Attn(P, X), Y_X = Attn(X, Y_P), P' = LayerNorm(P + Y_P) of the next layer [Ma et al. 2021, section 3]."""
    whole, x = model(LUNA), torch.randn(2, T, D)
    found = whole(inputs_embeds=x).last_hidden_state
    p = whole.encoder.layers[0].attention.op.tokens.expand(2, -1, -1)
    for i, layer in enumerate(whole.encoder.layers):
        op = layer.attention.op
        p = p if i == 0 else op.norm(p)
        y = torch_attention(op.pack, p, x)
        p, x = p + y, layer.attention.out_norm(x + torch_attention(op.unpack, x, y))
        x = layer.feedforward.out_norm(x + rff(layer.feedforward.op, x))
    close(found, x)


def test_luna_hands_on_what_it_packed() -> None:
    """Only the first layer has tokens; with handed_on=False each layer has its own, independent of earlier layers."""
    held = [name for name, _ in model(LUNA).named_parameters() if name.endswith(".tokens")]
    apart = [name for name, _ in model(OPS["luna apart"]).named_parameters() if name.endswith(".tokens")]
    assert (len(held), len(apart)) == (1, 3)
    two = Block(first=Sublayer(op=LUNA), second=Sublayer(op=LUNA.replace(tokens=2)))
    whole, seen = filled(af.build(model(LUNA).spec.replace(encoder=Stack(layers=two, depth=2)))), {}
    for step in ("first", "second"):  # each sublayer continues from the same sublayer of the previous layer
        op = getattr(whole.encoder.layers[1], step).op
        op.pack.register_forward_hook(lambda module, args, out, step=step: seen.update({step: args[0].shape[1]}))
    whole(input_ids=text())
    assert seen == {"first": M, "second": 2}


# -- invariants --------------------------------------------------------------------------------------------------------


@over_ops
def test_order_pads_and_rows(op: Any) -> None:
    """Without positions, permuted tokens give permuted results; pads and other rows change nothing."""
    whole, ids = model(op), text()
    states = whole(input_ids=ids).last_hidden_state
    order = torch.randperm(T)
    close(whole(input_ids=ids[:, order]).last_hidden_state, states[:, order])
    for widths, own in (((32, 0), slice(32, None)), ((0, 32), slice(0, T))):
        padded = {"input_ids": F.pad(ids, widths, value=3), "attention_mask": F.pad(torch.ones_like(ids), widths)}
        for whole.kernel in ("eager", "sdpa"):
            close(whole(**padded).last_hidden_state[:, own], states)
    close(torch.cat([whole(input_ids=row[None]).last_hidden_state for row in ids]), states)


@over_ops
def test_gradients_recomputation_and_nothing_to_see(op: Any) -> None:
    ids, mask, found = text(), torch.ones(2, T, dtype=torch.long), []
    mask[0] = 0  # a row without a real token
    for whole in (model(op), recompute(model(op))):
        whole.train()
        states = whole(input_ids=ids, attention_mask=mask).last_hidden_state
        states.square().sum().backward()
        found.append({name: parameter.grad for name, parameter in whole.named_parameters()})
    for name, grad in found[0].items():
        assert grad is not None and grad.isfinite().all() and bool((grad != 0).any() | name.endswith("k.bias")), name
        close(found[1][name], grad)


@over_ops
def test_counted_and_linear(op: Any, tmp_path: Any) -> None:
    whole = model(op, depth=4, head=TagHead(num_labels=3))
    counted = af.count(whole.spec)
    assert counted.parameters == sum(parameter.numel() for parameter in whole.parameters())
    sizes = {}
    for length in (256, 512, 1024):
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
            whole(input_ids=text(length, 1))
        sizes[length] = counter.get_total_flops()
        assert counted.flops(length) == sizes[length]
    assert sizes[1024] - sizes[512] == 2 * (sizes[512] - sizes[256])  # linear growth
    af.save(whole, tmp_path)
    assert torch.equal(af.load(tmp_path)(input_ids=text()).logits, whole(input_ids=text()).logits)


@over_ops
def test_drawn_and_looked_into(op: Any) -> None:
    whole = model(op)
    assert type(op).__name__.removesuffix("Attention") in af.draw(whole.spec).svg
    weights = whole(input_ids=text(), output_attentions=True).attentions
    assert [each.shape for each in weights] == [(2, H, T, M)] * 3
    for each in weights:
        close(each.sum(-1), torch.ones(2, H, T))


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made, line", [
    (lambda: model(LUNA, layer_drop=0.1), r"^Stack\.layer_drop: .* set handed_on=False"),
    (lambda: model(LUNA, order=(0, 1, 2, 0)), r"^Stack\.order: .* set handed_on=False"),
    (lambda: Windows(mixer=LUNA, size=2), r"^Windows\.mixer: .* set handed_on=False"),
    (lambda: Windows(mixer=INDUCED, size=2, shift=1), r"^Windows\.mixer: InducedAttention .* use Attention"),
    (lambda: Pool(take=SeedPool(seeds=SEEDS)), r"^Pool\.take: 4 vectors .* set dense=True"),
    (lambda: SEEDS.replace(before=MLP(width=3, out=4)), r"^Seeds\.before\.out"),
    (lambda: LUNA.replace(tokens=0), r"^LunaAttention\.tokens is 0"),
    (lambda: SEEDS.replace(bias="x"), r"^Seeds\.bias is 'x'.*'qkvo'"),
])  # fmt: skip
def test_refused(made: Any, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        made()


def test_a_layer_without_one_before_it() -> None:
    blocks = {"plain": Block(a=Sublayer(op=INNER)), "luna": Block(a=Sublayer(op=LUNA))}
    with pytest.raises(
        ValueError,
        match=r"^Stack\.layers\.luna: layers share parameters of the first layer.*\(plain\).* set handed_on=False",
    ):
        Stack(layers=blocks, depth=2, pattern=("plain", "luna"))
    Stack(layers=blocks, depth=2, pattern=("luna", "plain"))
