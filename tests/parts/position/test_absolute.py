"""Every position scheme against transformers if it has it, otherwise against its formula."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anyformer as af
from anyformer.models import DecoderModel, EncoderModel
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.grid.windows import Windows
from anyformer.parts.init import Normal
from anyformer.parts.mask import Causal
from anyformer.parts.position import dependency_tree
from anyformer.parts.position.absolute import (
    Alibi,
    AxialLearned,
    Binary,
    BucketedBias,
    Computed,
    Concatenated,
    Convolutional,
    DistanceBias,
    Integer,
    Learned,
    RelativeVectors,
    Sinusoidal,
    Sinusoidal2D,
    Summed,
    TreeDepth,
    add_position,
)
from anyformer.parts.position.grid import GridBias
from anyformer.parts.position.numbering import RealTokens, WithoutToken
from anyformer.parts.position.rotary import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    ProportionalScaling,
    Rope,
    YarnScaling,
)  # fmt: skip
from anyformer.specs.part import Site
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from small import close, compiled_equals_eager, context, filled, made

H, K, D, T = 4, 8, 32, 11


# -- added to the embedding -------------------------------------------------------------------------------------------


def test_learned_is_a_table_with_rows_before_it() -> None:
    module = made(Learned(length=9, offset=2), D)
    positions = torch.tensor([[0, 3, 8], [8, 8, 0]])
    close(module(positions), F.embedding(positions + 2, module.weight))
    with pytest.raises(ValueError, match="position 9 is beyond the model's 9 learned positions"):
        module(torch.tensor([[9]]))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [D, 33])
def test_sinusoidal_is_the_formula(interleaved: bool, width: int) -> None:
    table = made(Sinusoidal(length=700, interleaved=interleaved), width)(torch.arange(700)[None])[0]
    for place in (0, 1, 517, 699):
        for i in range(0, width, 2):
            angle = place / 10000 ** (i / width)
            sine, cosine = (i, i + 1) if interleaved else (i // 2, math.ceil(width / 2) + i // 2)
            assert table[place, sine] == pytest.approx(math.sin(angle), abs=1e-6)
            if cosine < width:
                assert table[place, cosine] == pytest.approx(math.cos(angle), abs=1e-6)


def test_sinusoidal_equals_published() -> None:
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    theirs = MarianSinusoidalPositionalEmbedding(50, D)
    theirs.weight.data.copy_(theirs.create_weight())
    close(made(Sinusoidal(length=50), D)(torch.arange(50)[None])[0], theirs.weight.data)


@pytest.mark.parametrize("prefix", [0, 1])
def test_sinusoidal_2d_equals_mae(prefix: int) -> None:
    from transformers.models.vit_mae.modeling_vit_mae import ViTMAEConfig, ViTMAEEmbeddings

    config = ViTMAEConfig(hidden_size=D, image_size=48, patch_size=8)  # a 6 x 6 grid
    theirs = ViTMAEEmbeddings(config)
    theirs.initialize_weights()
    ours = made(Sinusoidal2D(rows=6, columns=6, prefix=prefix), D)(torch.arange(36 + prefix)[None])[0]
    close(ours, theirs.position_embeddings[0, 1 - prefix :])


def test_sinusoidal_2d_on_an_oblong_grid() -> None:
    rows, columns, places = 3, 5, torch.arange(15)[None]
    ours = made(Sinusoidal2D(rows=rows, columns=columns), D)(places)[0]
    other = made(Sinusoidal2D(rows=rows, columns=columns, rows_first=True), D)(places)[0]
    line = made(Sinusoidal(length=5), D // 2)(torch.arange(5)[None])[0]
    for r in range(rows):
        for c in range(columns):
            close(ours[r * columns + c], torch.cat((line[c], line[r])))
            close(other[r * columns + c], torch.cat((line[r], line[c])))
    with pytest.raises(ValueError, match="multiple of 4"):
        Sinusoidal2D(rows=2, columns=2).build(Site(width=6))


def test_integer_and_binary() -> None:
    positions = torch.tensor([[0, 1, 5, 1000]])
    number = made(Integer(scale=0.5), D)(positions)
    assert number[0, :, 0].tolist() == [0, 0.5, 2.5, 500] and not number[..., 1:].any()
    bits = made(Binary(bits=10), D)(positions)
    for place, row in zip(positions[0].tolist(), bits[0]):
        assert [int(b) for b in row[:10]] == [int(b) for b in reversed(format(place, "010b"))]
    assert not bits[..., 10:].any()
    with pytest.raises(ValueError, match="1024"):
        made(Binary(bits=10), D)(torch.tensor([[1024]]))
    with pytest.raises(ValueError, match="9 bits .* width 8"):
        Binary(bits=9).build(Site(width=8))


@pytest.mark.parametrize("kernel", [4, 5])
def test_convolutional_equals_wav2vec2(kernel: int) -> None:
    from transformers import Wav2Vec2Config
    from transformers.models.wav2vec2.modeling_wav2vec2 import Wav2Vec2PositionalConvEmbedding

    config = Wav2Vec2Config(hidden_size=D, num_conv_pos_embeddings=kernel, num_conv_pos_embedding_groups=4)
    theirs = filled(Wav2Vec2PositionalConvEmbedding(config))
    ours = Convolutional(kernel=kernel, groups=4).build(Site(width=D))
    own = theirs.conv.parametrizations.weight
    ours.load_state_dict({"weight": own.original1, "scale": own.original0, "bias": theirs.conv.bias})
    x = torch.randn(2, T, D)
    close(ours(x), theirs(x))
    close(add_position(ours, x, context(T)), x + theirs(x))


def test_convolutional_does_not_hear_pads() -> None:
    module, x = made(Convolutional(kernel=4, groups=4), D), torch.randn(1, T, D)
    alone = add_position(module, x, context(T))
    for before, after in ((0, 5), (5, 0)):
        longer = F.pad(x, (0, 0, before, after), value=7.0)
        real = F.pad(torch.ones(1, T, dtype=torch.bool), (before, after))
        close(add_position(module, longer, context(T + 5, is_token=real))[:, before : before + T], alone)
    with pytest.raises(ValueError, match="Convolutional .* one document per row"):
        add_position(module, x, context(T, documents=torch.zeros(1, T, dtype=torch.long)))


def test_summed_adds() -> None:
    parts = (Learned(length=T), Sinusoidal(length=T))
    module, x = made(Summed(parts=parts), D), torch.randn(2, T, D)
    ctx = context(T)
    expected = x + module.parts[0](ctx.positions) + module.parts[1](ctx.positions)
    close(add_position(module, x, ctx), expected)


# -- rotary -----------------------------------------------------------------------------------------------------------


def rotated(part: Rope, x: Tensor, positions: Tensor | None = None) -> Tensor:
    ctx = context(x.shape[2])
    if positions is not None:
        ctx = ctx.replace(positions=positions)
    return part.build(Site(width=x.shape[-1])).rotate(x, x, ctx)[0]


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_rope_half_split_equals_gpt_neox(fraction: float) -> None:
    from transformers import GPTNeoXConfig
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding, apply_rotary_pos_emb

    rope = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": fraction}
    config = GPTNeoXConfig(hidden_size=H * K, num_attention_heads=H, rope_parameters=rope)
    x, positions = torch.randn(2, H, T, K), torch.randint(0, 90, (2, T))
    cos, sin = GPTNeoXRotaryEmbedding(config)(x, positions)
    theirs = apply_rotary_pos_emb(x, x, cos, sin)[0]
    close(rotated(Rope(base=500.0, fraction=fraction), x, positions), theirs)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_rope_interleaved_equals_gptj(fraction: float) -> None:
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb, create_sinusoidal_positions

    width = int(K * fraction)
    sin, cos = create_sinusoidal_positions(T, width).chunk(2, dim=-1)
    x = torch.randn(2, H, T, K)
    turned = apply_rotary_pos_emb(x[..., :width].transpose(1, 2), sin[None], cos[None]).transpose(1, 2)
    close(rotated(Rope(interleaved=True, fraction=fraction), x), torch.cat((turned, x[..., width:]), dim=-1))


def test_rope_scores_depend_on_the_distance_alone() -> None:
    q, k = torch.randn(1, 1, 1, K, dtype=torch.float64), torch.randn(1, 1, 1, K, dtype=torch.float64)
    for interleaved in (False, True):
        part, scores = Rope(interleaved=interleaved), []
        for shift in (0, 9):
            a = rotated(part, q, torch.tensor([[3 + shift]]))
            b = rotated(part, k, torch.tensor([[1 + shift]]))
            scores.append((a * b).sum())
        close(scores[0], scores[1], 1e-5)


ROPES: list[tuple[Any, dict[str, Any]]] = [
    (LinearScaling(factor=4.0), {"rope_type": "linear", "factor": 4.0}),
    (LinearScaling(factor=0.5), {"rope_type": "linear", "factor": 0.5}),
    (YarnScaling(factor=4.0, length=32), {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
    (  # a length so short that no channel makes a full turn: the ramp runs backwards
        YarnScaling(factor=4.0, length=4),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4},
    ),
    (
        YarnScaling(factor=40.0, length=4096, beta_fast=8.0, beta_slow=2.0, truncate=False),
        {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 8.0,
         "beta_slow": 2.0, "truncate": False},
    ),
    (  # both ends of the ramp are at one channel
        YarnScaling(factor=2.0, length=512, beta_fast=3.0, beta_slow=3.0, truncate=False),
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512, "beta_fast": 3.0,
         "beta_slow": 3.0, "truncate": False},
    ),
    (
        YarnScaling(factor=40.0, length=64, mscale=0.707, mscale_all_dim=1.2),
        {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "mscale": 0.707,
         "mscale_all_dim": 1.2},
    ),
    (
        YarnScaling(factor=40.0, length=64, mscale=0.707),
        {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "mscale": 0.707},
    ),
    (
        YarnScaling(factor=0.5, length=64),
        {"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 64},
    ),
    (
        YarnScaling(factor=4.0, length=64, attention_factor=0.5),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 0.5},
    ),
    (
        Llama3Scaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, length=64),
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 64},
    ),
    (
        Llama3Scaling(factor=3.0, low_frequency_factor=0.3, high_frequency_factor=30.0, length=8192),
        {"rope_type": "llama3", "factor": 3.0, "low_freq_factor": 0.3, "high_freq_factor": 30.0,
         "original_max_position_embeddings": 8192},
    ),
    *[(  # no band between low and high
        Llama3Scaling(factor=3.0, low_frequency_factor=low, high_frequency_factor=2.0, length=64),
        {"rope_type": "llama3", "factor": 3.0, "low_freq_factor": low, "high_freq_factor": 2.0,
         "original_max_position_embeddings": 64},
    ) for low in (2.0, 9.0)],
    (ProportionalScaling(share=0.3, factor=2.0),
     {"rope_type": "proportional", "partial_rotary_factor": 0.3, "factor": 2.0}),
    (ProportionalScaling(share=0.75), {"rope_type": "proportional", "partial_rotary_factor": 0.75}),
]  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs"), ROPES, ids=lambda value: repr(value)[:60])
@pytest.mark.parametrize("width", [8, 64])
def test_rope_scaling_equals_published(ours: Any, theirs: dict[str, Any], width: int) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    base = 700.0
    config = LlamaConfig(
        hidden_size=width, num_attention_heads=1, head_dim=width, max_position_embeddings=4 * 64,
        rope_parameters={"rope_theta": base, **theirs},
    )  # fmt: skip
    frequency, factor = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](config, torch.device("cpu"))
    module = Rope(base=base, scaling=ours).build(Site(width=width))
    close(module.frequency(), frequency)
    assert module.magnitude == pytest.approx(factor, abs=1e-9)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 100])
def test_dynamic_rope_equals_published(length: int) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rope = {"rope_type": "dynamic", "rope_theta": 700.0, "factor": 2.5}
    config = LlamaConfig(hidden_size=K, num_attention_heads=1, max_position_embeddings=32, rope_parameters=rope)
    ctx = context(length)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), ctx.positions)
    scaling = DynamicScaling(factor=2.5, length=32)
    ours = Rope(base=700.0, scaling=scaling).build(Site(width=K)).tables(ctx, torch.float32)
    for mine, published in zip(ours, (cos, sin)):
        close(mine[:, 0], published[..., : K // 2], 1e-5)


@pytest.mark.parametrize("length", [1, 32, 33, 100])
@pytest.mark.parametrize("warmed", [{}, {"factor": 4.0}, {"factor": 0.5}, {"attention_factor": 1.3}], ids=str)
def test_long_rope_equals_published(length: int, warmed: dict[str, float]) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    short, long = [1.0 + 0.1 * i for i in range(K // 2)], [2.0 + 0.5 * i for i in range(K // 2)]
    rope = {"rope_type": "longrope", "rope_theta": 700.0, "short_factor": short, "long_factor": long, **warmed}
    config = LlamaConfig(
        hidden_size=K, num_attention_heads=1, max_position_embeddings=96,
        rope_parameters={**rope, "original_max_position_embeddings": 32},
    )  # fmt: skip
    ctx = context(length)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), ctx.positions)
    scaling = LongScaling(short=tuple(short), long=tuple(long), length=32, **{"factor": 3.0, **warmed})
    ours = Rope(base=700.0, scaling=scaling).build(Site(width=K)).tables(ctx, torch.float32)
    for mine, published in zip(ours, (cos, sin)):
        close(mine[:, 0], published[..., : K // 2], 1e-5)


# -- biases -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (10, 33)])
def test_bucketed_bias_equals_t5(both_ways: bool, num_buckets: int, max_distance: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    part = BucketedBias(num_heads=H, num_buckets=num_buckets, max_distance=max_distance, both_ways=both_ways)
    module = made(part, K)
    far = torch.arange(-300, 301)
    theirs = T5Attention._relative_position_bucket(far, both_ways, num_buckets, max_distance)
    assert torch.equal(module.bucket(far), theirs)
    index, places = torch.arange(5, 9), torch.arange(12)
    bias = module(index, places)
    assert bias.shape == (1, H, 4, 12)
    for i, j in ((0, 0), (3, 11), (2, 7)):
        entry = T5Attention._relative_position_bucket(places[j] - index[i], both_ways, num_buckets, max_distance)
        close(bias[0, :, i, j], module.table.weight[entry])


@pytest.mark.parametrize("num_heads", [1, 2, 3, 5, 8, 12, 20, 71])
def test_alibi_equals_bloom(num_heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, T, dtype=torch.long), num_heads, torch.float32)  # (H, 1, S)
    module, ctx = made(Alibi(num_heads=num_heads), K), context(T)
    _, bias = module.bias(torch.zeros(1, num_heads, T, K), ctx.index, 1.0, ctx)
    # theirs is the same up to a constant per row, which does not affect softmax
    below = torch.ones(T, T).tril().bool()
    ours, theirs = (x.expand(num_heads, T, T).masked_fill(~below, float("-inf")) for x in (bias[0], theirs))
    close(ours.softmax(-1), theirs.softmax(-1))
    close(bias[0, :, 4, 1], -3 * module.slopes())
    close(bias, bias.transpose(-1, -2))


def test_one_scalar_a_distance() -> None:
    module, ctx = made(DistanceBias(num_heads=H, before=3, after=2), K), context(T)
    _, bias = module.bias(torch.zeros(1, H, T, K), ctx.index, 1.0, ctx)
    table = module.table.weight
    assert table.shape == (6, H) and bias.shape == (1, H, T, T)
    for i in range(T):
        for j in range(T):
            close(bias[0, :, i, j], table[3 + max(-3, min(2, j - i))])
    close(module(ctx.index, ctx.index), bias)
    assert DistanceBias(num_heads=H, before=3).size == 7


@pytest.mark.parametrize("part", [
    BucketedBias(num_heads=H), DistanceBias(num_heads=H, before=3), Alibi(num_heads=H), RelativeVectors(before=3),
])  # fmt: skip
def test_keys_of_a_bias_lie_side_by_side(part: Any) -> None:
    """CUDA's fused kernels need a contiguous bias; without one, training T5 used twice the memory on an H200."""
    module, ctx = made(part, K), context(T)
    _, bias = module.bias(torch.zeros(1, H, T, K), ctx.index, 1.0, ctx)
    assert bias.stride(-1) == 1
    assert not part.can_share or module(ctx.index, ctx.index).stride(-1) == 1


def shaw(q: Tensor, k: Tensor, v: Tensor, scale: float, keys: Tensor, values: Tensor, clip: int) -> Tensor:
    """Equations 3 and 4 of the paper, vector by vector."""
    index = torch.arange(q.shape[2])
    entries = (index[None, :] - index[:, None]).clamp(-clip, clip) + clip
    scores = scale * torch.einsum("bhik,bhijk->bhij", q, k[:, :, None] + keys[entries])
    return torch.einsum("bhij,bhijk->bhik", scores.softmax(-1), v[:, :, None] + values[entries])


def test_relative_vectors_are_shaws() -> None:
    attention = made(Attention(num_heads=H, position=RelativeVectors(before=3)), D)
    x = torch.randn(2, T, D)
    q, k, v = (attention.heads(getattr(attention, name)(x)) for name in "qkv")
    position = attention.position
    mixed = shaw(q, k, v, attention.scale, position.key_table.weight, position.value_table.weight, 3)
    for kernel in ("auto", "eager", "sdpa"):
        close(attention(x, context(T, kernel=kernel)), attention.o(mixed.transpose(1, 2).flatten(2)))


def test_relative_vectors_drop_weights_and_their_values_together() -> None:
    attention = made(Attention(num_heads=H, position=RelativeVectors(before=3), dropout=0.5), D).train()
    with torch.no_grad():
        attention.o.weight.copy_(torch.eye(D))
        attention.o.bias.zero_()
        attention.v.weight.zero_()
        attention.v.bias.fill_(1.0)
        attention.position.value_table.weight.fill_(1.0)  # so out = 2 * the sum of the weights that dropout kept
    torch.manual_seed(0)
    out = attention(torch.randn(2, T, D), context(T))
    torch.manual_seed(0)
    with torch.no_grad():
        attention.position.value_table.weight.zero_()
    kept = attention(torch.randn(2, T, D), context(T))
    assert kept.std() > 0.1, "nothing was dropped"
    close(out, 2 * kept)


def test_relative_keys_equal_wav2vec2_bert() -> None:
    from transformers import Wav2Vec2BertConfig
    from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention

    config = Wav2Vec2BertConfig(
        hidden_size=D, num_attention_heads=H, left_max_position_embeddings=5, right_max_position_embeddings=2,
        position_embeddings_type="relative_key", attn_implementation="eager",
    )  # fmt: skip
    theirs = filled(Wav2Vec2BertSelfAttention(config))
    ours = Attention(num_heads=H, position=RelativeVectors(before=5, after=2, values=False)).build(Site(width=D))
    names = {"q": "linear_q", "k": "linear_k", "v": "linear_v", "o": "linear_out"}
    state = {f"{n}.{p}": getattr(theirs, full).state_dict()[p] for n, full in names.items() for p in ("weight", "bias")}
    ours.load_state_dict({**state, "position.key_table.weight": theirs.distance_embedding.weight})
    x = torch.randn(2, T, D)
    for kernel in ("eager", "sdpa"):
        close(ours(x, context(T, kernel=kernel)), theirs(x)[0])


# -- trees ------------------------------------------------------------------------------------------------------------

# "the black cat sat on the mat": the->cat black->cat cat->sat sat(root) on->mat the->mat mat->sat
PARENTS = torch.tensor([[2, 2, 3, -1, 6, 6, 3]])
DEPTHS = [2, 2, 1, 0, 2, 2, 1]


def test_tree_depths_and_distances_by_hand() -> None:
    ctx = context(7, extras=(dependency_tree.Tree(PARENTS),))
    parents = dependency_tree.parents_of(ctx)
    assert dependency_tree.depths(parents)[0].tolist() == DEPTHS
    apart = dependency_tree.distances(parents)[0]
    above = {i: [] for i in range(7)}
    for i in range(7):
        j = i
        while PARENTS[0, j] >= 0:
            j = int(PARENTS[0, j])
            above[i].append(j)
    for i in range(7):
        for j in range(7):
            if i == j or j in above[i] or i in above[j]:
                expected = DEPTHS[i] - DEPTHS[j]
            else:
                expected = (1 if i > j else -1) * (DEPTHS[i] + DEPTHS[j])
            assert apart[i, j] == expected, (i, j)


@pytest.mark.parametrize("length", [1, 2, 5, 64])
def test_a_chain_is_as_deep_as_it_is_long(length: int) -> None:
    parents = torch.arange(length)[None] - 1
    ctx = context(length, extras=(dependency_tree.Tree(parents),))
    assert dependency_tree.depths(dependency_tree.parents_of(ctx))[0].tolist() == list(range(length))
    expected = torch.arange(length)[:, None] - torch.arange(length)[None]
    assert torch.equal(dependency_tree.distances(dependency_tree.parents_of(ctx))[0], expected)


def test_a_tree_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="tree_parents has a cycle"):
        dependency_tree.depths(torch.tensor([[1, 0, 2]]))
    with pytest.raises(ValueError, match="tree_parents contains index 9, but a row has 3"):
        dependency_tree.parents_of(context(3, extras=(dependency_tree.Tree(torch.tensor([[9, 0, -1]])),)))
    with pytest.raises(ValueError, match="need the input tree_parents"):
        dependency_tree.parents_of(context(3))


def model_with(position: Any = None, absolute: Any = None, depth: int = 2, **more: Any) -> Any:
    kind, stack = (DecoderModel, "decoder") if more.get("mask") else (EncoderModel, "encoder")
    attention = Attention(num_heads=H, position=position, **more)
    spec = kind(
        width=D, embedding=TextEmbedding(tokens=Tokens(vocab_size=50), position=absolute),
        init={"*": Normal(std=0.5)},
        **{stack: Stack(layers=Block(attention=Sublayer(op=attention)), depth=depth)},
    )  # fmt: skip
    return af.build(spec).eval()


def test_tree_positions_reach_a_model() -> None:
    absolute = Summed(parts=(Learned(length=7), TreeDepth(scheme=Learned(length=7))))
    ids = torch.arange(7)[None]
    for model in (model_with(DistanceBias(num_heads=H, before=4, tree=True)),
                  model_with(RelativeVectors(before=4, tree=True)), model_with(absolute=absolute)):  # fmt: skip
        out = model(input_ids=ids, tree_parents=PARENTS).last_hidden_state
        chain = model(input_ids=ids, tree_parents=torch.arange(7)[None] - 1).last_hidden_state
        assert not torch.allclose(out, chain)
        # two pads before the text move every row index by two
        moved = F.pad(torch.where(PARENTS < 0, PARENTS, PARENTS + 2), (2, 0), value=-1)
        padded = {"input_ids": F.pad(ids, (2, 0)), "attention_mask": F.pad(torch.ones_like(ids), (2, 0))}
        close(model(**padded, tree_parents=moved).last_hidden_state[:, 2:], out, 1e-5)
        with pytest.raises(ValueError, match="tree_parents"):
            model(input_ids=ids)
    with pytest.raises(TypeError, match="has no input 'tree_parents'"):
        model_with(Rope())(input_ids=ids, tree_parents=PARENTS)


# -- in one graph; padding, packed documents and decoding: test_in_models.py -------------------------------------------

RELATIVE = [
    Rope(), Rope(interleaved=True, fraction=0.5), Alibi(num_heads=H), BucketedBias(num_heads=H, both_ways=False),
    DistanceBias(num_heads=H, before=5), RelativeVectors(before=5), RelativeVectors(before=5, values=False),
]  # fmt: skip
ABSOLUTE = [Learned(length=64), Sinusoidal(length=64), Integer(scale=0.1), Binary(bits=6)]
SCHEMES = [{"position": part} for part in RELATIVE] + [{"absolute": part} for part in ABSOLUTE]


def test_one_graph() -> None:
    models = [model_with(**scheme, depth=1, mask=Causal()) for scheme in SCHEMES]
    mask = torch.ones(2, T, dtype=torch.long)
    mask[1, :3] = 0

    def run(ids: Tensor) -> list[Tensor]:
        given = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
        return [model(**given).last_hidden_state for model in models]

    with torch.no_grad():
        compiled_equals_eager(run, torch.randint(0, 50, (2, T)), tolerance=1e-5)


@pytest.mark.slow
def test_trees_and_convolutions_in_one_graph() -> None:
    ids = torch.arange(7)[None]
    trees = (DistanceBias(num_heads=H, before=4, tree=True), RelativeVectors(before=2, tree=True))
    models = [(model_with(part, depth=1), {"tree_parents": PARENTS}) for part in trees]
    models.append((model_with(absolute=Convolutional(kernel=4, groups=4), depth=1), {}))
    with torch.no_grad():
        compiled_equals_eager(lambda i: [m(input_ids=i, **given).last_hidden_state for m, given in models], ids)


# -- invalid values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "line"), [
    (lambda: Learned(length=0), "Learned.length is 0; it must be at least 1"),
    (lambda: Learned(length=3, offset=-1), "Learned.offset is -1"),
    (lambda: Sinusoidal(length=4, base=0.0), "Sinusoidal.base is 0.0; it must be above 0"),
    (lambda: Sinusoidal2D(rows=0, columns=3), "Sinusoidal2D.rows is 0"),
    (lambda: Binary(bits=0), "Binary.bits is 0"),
    (lambda: Convolutional(kernel=0), "Convolutional.kernel is 0"),
    (lambda: Rope(base=-1.0), "Rope.base is -1.0"),
    (lambda: Rope(fraction=1.5), "Rope.fraction is 1.5"),
    (lambda: Rope(base=float("nan")), "Rope.base: expected a finite number, got nan"),
    (lambda: LinearScaling(factor=0.0), "LinearScaling.factor is 0.0"),
    (lambda: DynamicScaling(factor=0.0, length=9), "DynamicScaling.factor is 0.0"),
    (lambda: YarnScaling(factor=2.0, length=0), "YarnScaling.length is 0"),
    (lambda: LongScaling(short=(1.0, 0.0), long=(1.0, 2.0), length=9), "LongScaling.short.1 is 0.0"),
    (lambda: Rope(scaling=LongScaling(short=(1.0, 2.0), long=(1.0,), length=9)).build(Site(width=6, address="a.b")),
     "a.b: LongScaling.short has 2 factors for 3 pairs"),
    (lambda: ProportionalScaling(share=1.5), "ProportionalScaling.share is 1.5"),
    (lambda: Alibi(num_heads=0), "Alibi.num_heads is 0"),
    (lambda: BucketedBias(num_heads=2, num_buckets=2), "BucketedBias.num_buckets is 2"),
    (lambda: BucketedBias(num_heads=2, max_distance=8), "BucketedBias.max_distance is 8; it must be above 8"),
    (lambda: DistanceBias(num_heads=2, before=-1), "DistanceBias.before is -1"),
    (lambda: RelativeVectors(before=2, after=-2), "RelativeVectors.after is -2"),
    (lambda: Rope().build(Site(width=5, address="a.b")), "a.b: Rope rotates pairs of channels, got 5 of 5"),
    (lambda: Rope(fraction=0.5, scaling=DynamicScaling(factor=2.0, length=9)).build(Site(width=4, address="a.b")),
     "a.b: DynamicScaling needs at least two pairs"),
    (lambda: TextEmbedding(tokens=Tokens(vocab_size=9), position=Learned(length=9),
                           numbering=WithoutToken(token=1)),
     "TextEmbedding.position: WithoutToken needs a row for tokens it does not count; set offset=1"),
    (lambda: TextEmbedding(tokens=Tokens(vocab_size=9), position=Sinusoidal(length=9), numbering=RealTokens()),
     "set offset=1"),
    (lambda: Windows(mixer=Attention(num_heads=2, position=GridBias(num_heads=2, size=2)), size=3),
     "Windows.mixer.position.size is 2; windows of size 3 need 3"),
    (lambda: Convolutional(groups=3).build(Site(width=8)), "not a multiple of 3 groups"),
    (lambda: Attention(num_heads=4, position=Alibi(num_heads=8)), "Attention.position.num_heads is 8; it must equal"),
])  # fmt: skip
def test_nonsense_is_one_clear_line(make: Any, line: str) -> None:
    with pytest.raises(ValueError) as error:
        make()
    assert line in str(error.value) and "\n" not in str(error.value)


def test_a_constant_is_computed_when_it_leaves_meta() -> None:
    with torch.device("meta"):
        holder = nn.ModuleList([Computed(lambda: torch.arange(3.0))])
    assert holder[0]().numel() == 0 and not holder.state_dict()
    holder.to_empty(device="cpu")
    assert holder[0]().tolist() == [0, 1, 2]
    assert holder.to(torch.bfloat16)[0]().dtype == torch.float32


def test_axial_positions_are_a_grid() -> None:
    """The vectors of a position's row and column, concatenated; also with three sides."""
    for shape, widths in (((3, 5), (4, 8)), ((2, 3, 4), (4, 2, 6))):
        module = made(AxialLearned(shape=shape, widths=widths), sum(widths))
        sides = [parameter.view(*[n if i == axis else 1 for i, n in enumerate(shape)], -1).expand(*shape, -1)
                 for axis, parameter in enumerate(module.parameters())]  # fmt: skip
        places = torch.arange(module.length)[None]
        close(module(places), torch.cat(sides, -1).flatten(0, -2)[None], 0)
        with pytest.raises(ValueError, match=f"position {module.length} is beyond the model's {module.length}"):
            module(places + 1)


def test_axial_dropout_takes_whole_columns() -> None:
    module = made(AxialLearned(shape=(6, 50), widths=(4, 4), dropout=0.4), 8)
    places = torch.arange(300)[None].expand(3, -1)
    kept, out = module(places).unflatten(1, (6, 50)), module.train()(places).unflatten(1, (6, 50))
    gone = (out == 0).all(-1)  # (B, rows, columns)
    assert torch.equal(gone, gone[:, :1].expand_as(gone)) and 0.2 < float(gone.float().mean()) < 0.6
    close(out[~gone], kept[~gone] / 0.6)


@pytest.mark.parametrize("fields, line", [
    ({"shape": (3,), "widths": (4, 4)}, "widths is"), ({"shape": (3, 0), "widths": (4, 4)}, "widths is"),
    ({"shape": (2, 3), "widths": (4, 4), "length": 7}, "length is 7; shape .* has 6 positions"),
])  # fmt: skip
def test_axial_positions_that_are_none(fields: dict, line: str) -> None:
    with pytest.raises(ValueError, match=f"^AxialLearned.{line}"):
        AxialLearned(**fields)


def test_axial_positions_of_another_width() -> None:
    with pytest.raises(ValueError, match=r"here: .*widths \(4, 4\) is 8, not 12"):
        made(AxialLearned(shape=(2, 3), widths=(4, 4)), 12)


def test_concatenated_positions() -> None:
    """W [x; p]; adding p is a special case."""
    module, x = made(Concatenated(scheme=Sinusoidal(length=9), width=6), D), torch.randn(2, 5, D)
    p = made(Sinusoidal(length=9), 6)(torch.arange(5)[None])
    expected = torch.cat((x, p.expand(2, -1, -1)), -1) @ module.project.weight.T
    close(module.add(x, context(5)), expected)
    added = made(Concatenated(scheme=Sinusoidal(length=9), width=D), D)
    with torch.no_grad():
        added.project.weight.copy_(torch.cat((torch.eye(D), torch.eye(D)), 1))
    close(added.add(x, context(5)), add_position(made(Sinusoidal(length=9), D), x, context(5)))
    assert Concatenated(scheme=Learned(length=9), width=2).max_length == 9
    with pytest.raises(ValueError, match="Concatenated.scheme is Summed.*use Sinusoidal"):
        Concatenated(scheme=Summed(parts=(Integer(),)), width=4)
