"""Attention against torch.nn.MultiheadAttention and formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyformer as af
from anyformer.models import DecoderModel
from anyformer.parts.attention.attention import Attention
from anyformer.parts.attention.memory_compressed import BlockAttention
from anyformer.parts.attention.scores import LearnedScale, ScaleByLayer, SoftCap, TalkingHeads
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.init import Normal
from anyformer.parts.mask import Causal, Either, Global, Mask, Window
from anyformer.parts.norm import LayerNorm, RMSNorm, UnitNorm
from anyformer.parts.position.absolute import BucketedBias
from anyformer.parts.position.rotary import Rope
from anyformer.runtime.context import Memory
from anyformer.runtime.state import State
from anyformer.specs.part import Site
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from small import Weights, close, compiled_equals_eager, context, filled, made

D, H, T = 24, 4, 9
BOTH = pytest.mark.parametrize("kernel", ["eager", "sdpa"])


def torch_attention(bias: bool = True, **widths: int) -> tuple[Any, Any]:
    """Return torch.nn.MultiheadAttention with random weights, and our module with the same weights."""
    theirs = filled(nn.MultiheadAttention(D, H, bias=bias, batch_first=True, **widths))
    part = Attention(num_heads=H, bias="qkvo" if bias else "", memory=bool(widths), memory_width=widths.get("kdim"))
    ours = part.build(Site(width=D, address="attention"))
    state = theirs.state_dict()
    for i, name in enumerate("qkv"):
        weight = state[f"{name}_proj_weight"] if widths else state["in_proj_weight"].chunk(3)[i]
        getattr(ours, name).weight.data.copy_(weight)
        if bias:
            getattr(ours, name).bias.data.copy_(state["in_proj_bias"].chunk(3)[i])
    ours.o.load_state_dict(theirs.out_proj.state_dict())
    return ours, theirs


@BOTH
@pytest.mark.parametrize("bias", [True, False])
def test_self_attention_equals_torch(kernel: str, bias: bool) -> None:
    ours, theirs = torch_attention(bias)
    x = torch.randn(2, T, D)
    close(ours(x, context(T, kernel=kernel)), theirs(x, x, x)[0])


@BOTH
def test_masked_and_padded_equal_torch(kernel: str) -> None:
    ours, theirs = torch_attention()
    ours.part = ours.part.replace(mask=Causal())
    ours.mask_key = repr(ours.part.mask)
    x, real = torch.randn(2, T, D), torch.ones(2, T, dtype=torch.bool)
    causal = torch.ones(T, T).triu(1).bool()
    close(ours(x, context(T, kernel=kernel)), theirs(x, x, x, attn_mask=causal)[0])
    real[1, 5:] = False
    expected = theirs(x, x, x, attn_mask=causal, key_padding_mask=~real)[0]
    close(ours(x, context(T, kernel=kernel, is_token=real))[real], expected[real])


@BOTH
def test_cross_attention_equals_torch(kernel: str) -> None:
    ours, theirs = torch_attention(kdim=10, vdim=10)
    x, memory, real = torch.randn(2, T, D), torch.randn(2, 5, 10), torch.ones(2, 5, dtype=torch.bool)
    real[0, 3:] = False
    ctx = context(T, kernel=kernel, memory=Memory(memory, real))
    close(ours(x, ctx), theirs(x, memory, memory, key_padding_mask=~real)[0])


def test_weights_equal_torch() -> None:
    ours, theirs = torch_attention()
    x = torch.randn(2, T, D)
    for kernel in ("auto", "sdpa", "eager"):
        seen = Weights()
        out = ours(x, context(T, kernel=kernel, taps=seen))
        expected, weights = theirs(x, x, x, average_attn_weights=False)
        close(out, expected)
        close(seen[0], weights)
        close(weights.sum(-1), torch.ones(2, H, T))


@BOTH
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_queries_equal_repeated_heads(kernel: str, groups: int) -> None:
    few = made(Attention(num_heads=H, num_kv_heads=groups), D)
    all_heads = Attention(num_heads=H).build(Site(width=D))
    K = D // H

    def repeat(tensor: Tensor) -> Tensor:
        return tensor.unflatten(0, (groups, K)).repeat_interleave(H // groups, dim=0).flatten(0, 1)

    state = few.state_dict()
    all_heads.load_state_dict({n: repeat(t) if n[0] in "kv" else t for n, t in state.items()})
    x = torch.randn(2, T, D)
    close(few(x, context(T, kernel=kernel)), all_heads(x, context(T, kernel=kernel)))
    assert few.k.weight.shape == (groups * K, D)


def formula(module: Any, x: Tensor, softcap: float | None = None) -> Tensor:
    q, k, v = (getattr(module, n)(x).unflatten(-1, (-1, module.head_width)).transpose(1, 2) for n in "qkv")
    if module.q_norm is not None:
        q, k = module.q_norm(q), module.k_norm(k)
    scores = q @ k.transpose(-1, -2) * module.scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    return module.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@BOTH
@pytest.mark.parametrize("norm", [RMSNorm(), LayerNorm()])
def test_qk_norm(kernel: str, norm: Any) -> None:
    module, x = made(Attention(num_heads=H, qk_norm=norm), D), torch.randn(2, T, D)
    assert module.q_norm.weight.shape == (D // H,) and module.q_norm is not module.k_norm
    close(module(x, context(T, kernel=kernel)), formula(module, x))


@BOTH
def test_cosines_with_a_learned_scale(kernel: str) -> None:
    """Swin V2's scores [Liu et al. 2022], in one layer and in a stack of blocks."""
    part = Attention(num_heads=H, scale=1.0, qk_norm=UnitNorm(), scores=(LearnedScale(start=3.0, most=5.0),))
    module, x = made(part, D), torch.randn(2, T, D)
    assert torch.allclose(part.build(Site(width=D)).scores[0].weight, torch.tensor(3.0).log())
    module.scores[0].weight.data = torch.tensor([0.0, 1.0, -1.0, 4.0])[:, None, None]
    factor = torch.tensor([1.0, 2.718281828, 0.367879441, 5.0])
    q, k, v = (module.heads(layer(x)) for layer in (module.q, module.k, module.v))
    scores = torch.cosine_similarity(q[..., :, None, :], k[..., None, :, :], dim=-1) * factor[:, None, None]
    close(module(x, context(T, kernel=kernel)), module.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))
    blocks = made(BlockAttention(num_heads=H, size=4, scores=(LearnedScale(start=3.0),)), D)
    blocks.scores[0].weight.data.fill_(1.5)
    close(blocks(x, context(T, kernel=kernel)), blocks(x, context(T, kernel="eager")))


@BOTH
def test_softcap(kernel: str) -> None:
    module, x = made(Attention(num_heads=H, scores=(SoftCap(bound=0.7),)), D), torch.randn(2, T, D) * 3
    close(module(x, context(T, kernel=kernel)), formula(module, x, 0.7))
    assert not torch.allclose(formula(module, x, 0.7), formula(module, x))


def test_scale_and_head_width() -> None:
    x = torch.randn(2, T, D)
    module = made(Attention(num_heads=3, head_width=5, scale=0.3), D)
    assert module.q.weight.shape == (15, D) and module.o.weight.shape == (D, 15)
    close(module(x, context(T)), formula(module, x))
    assert made(Attention(num_heads=H), D).scale == (D // H) ** -0.5
    assert made(Attention(num_heads=H, scores=(ScaleByLayer(),)), D, layer=2).scale == (D // H) ** -0.5 / 3


@pytest.mark.parametrize("bias", ["", "qkv", "o", "qv"])
def test_biases_by_projection(bias: str) -> None:
    module = made(Attention(num_heads=H, bias=bias), D)
    assert {n for n in "qkvo" if getattr(module, n).bias is not None} == set(bias)


def decoder(mask: Mask, **more: Any) -> Any:
    attention = Attention(num_heads=H, num_kv_heads=2, mask=mask, **more)
    spec = DecoderModel(
        width=D, embedding=TextEmbedding(tokens=Tokens(vocab_size=30)),
        decoder=Stack(layers=Block(attention=Sublayer(op=attention)), depth=2), init={"*": Normal(std=0.5)},
    )  # fmt: skip
    return af.build(spec).eval()


def test_a_window_bounds_the_memory() -> None:
    def kept(mask: Mask) -> int:
        model = decoder(mask)
        state = model.new_state(1)
        for _ in range(3):
            model(input_ids=torch.randint(0, 30, (1, 5)), past_key_values=state)
        return state.stores["decoder.layers.0.attention.op"].tensors["k"].shape[2]

    assert kept(Causal()) == 15 and kept(Causal() & Window(size=4)) == 4 == kept(Window(size=4) & Causal())
    # a mask of which only a part is a window needs all tokens
    assert kept(Either(masks=(Causal(), Causal() & Window(size=4)))) == 15
    assert kept(Causal() & (Window(size=4) | Global())) == 15


def test_cross_attention_takes_no_mask_and_no_position() -> None:
    for wrong in ({"mask": Causal()}, {"position": Rope()}):
        with pytest.raises(ValueError, match=r"Attention\(memory=True\).*no mask and no position"):
            Attention(num_heads=H, memory=True, **wrong)
    with pytest.raises(ValueError, match="set memory=True too"):
        Attention(num_heads=H, memory_width=8)


@torch.no_grad()
def test_memory_is_projected_once_per_text() -> None:
    module = made(Attention(num_heads=H, memory=True), D)
    holder = nn.Module()
    holder.add_module("here", module)
    state, memory = State.allocate(holder, 2), torch.randn(2, 5, D)
    first = module(torch.randn(2, 1, D), context(1, memory=Memory(memory), state=state))
    kept = state.stores["here"].tensors["k"]
    x = torch.randn(2, 1, D)
    second = module(x, context(1, memory=Memory(memory), state=state))
    assert state.stores["here"].tensors["k"] is kept and first.shape == second.shape
    close(second, module(x, context(1, memory=Memory(memory))))
    with pytest.raises(ValueError, match="encoder_hidden_states"):
        module(x, context(1))


def test_one_graph() -> None:
    parts = (
        Attention(num_heads=H, mask=Causal(), num_kv_heads=1),
        Attention(num_heads=H, scores=(SoftCap(bound=2.0),), qk_norm=RMSNorm()),
        Attention(num_heads=H, mask=Causal() & Window(size=3), position=BucketedBias(num_heads=H)),
    )  # fmt: skip
    modules, real = [made(part, D) for part in parts], torch.ones(2, T, dtype=torch.bool)
    real[1, :4] = False
    compiled_equals_eager(lambda x: [m(x, context(T, is_token=real)) for m in modules], torch.randn(2, T, D))


def test_dropout_is_on_the_weights() -> None:
    module, x = made(Attention(num_heads=H, dropout=0.5), D), torch.randn(2, T, D)
    plain = module(x, context(T))
    module.train()
    for kernel in ("eager", "sdpa"):  # every row has its own mask
        outs = module(x.repeat(1500, 1, 1), context(T, kernel=kernel)).unflatten(0, (1500, 2))
        close(outs.mean(0), plain, 0.15)
        assert outs.std(0).min() > 0.01


@pytest.mark.parametrize(("fields", "line"), [
    ({"num_heads": 0}, "Attention.num_heads is 0"),
    ({"num_heads": 4, "num_kv_heads": 0}, "Attention.num_kv_heads is 0"),
    ({"num_heads": 4, "num_kv_heads": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
    ({"num_heads": 4, "head_width": 0}, "Attention.head_width is 0"),
    ({"num_heads": 4, "bias": "qkx"}, "Attention.bias is 'qkx'.*'qkvo'"),
    ({"num_heads": 4, "scores": (TalkingHeads(), TalkingHeads())}, "Attention.scores.*mix heads"),
    ({"num_heads": 4, "dropout": 1.0}, "Attention.dropout is 1.0"),
    ({"num_heads": 4, "position": BucketedBias(num_heads=2)}, "Attention.position.num_heads is 2; .* 4"),
])  # fmt: skip
def test_refused(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        Attention(**fields)


def test_a_width_that_heads_do_not_divide() -> None:
    with pytest.raises(ValueError, match="a.b: width 10 is not a multiple of 4 heads; set head_width"):
        Attention(num_heads=4).build(Site(width=10, address="a.b"))
