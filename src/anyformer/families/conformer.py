"""The Conformer [Gulati et al. 2020]: half a feed-forward, attention, a convolution and the other half in each layer,
over a spectrogram of which two convolutions leave one frame in four. What is said is found in the frames by CTC, or a
Transformer's decoder writes it [Guo et al. 2020]; the paper's transducer, an LSTM and a joint network, is not here.

No files of the paper's are published: there are descriptions, saved in our own form, with config fields named as those
of the original Transformer. torchaudio has the layers alone, over vectors; it writes no config.json, and ours has its
arguments."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, activation_at, again
from anyformer.families.shared import transformer
from anyformer.models import EncoderDecoderModel, EncoderModel, Model
from anyformer.parts.attention.attention import Attention
from anyformer.parts.convolution.conformer import ConvolutionModule
from anyformer.parts.embedding.subsampling import SubsampledSpectrogram
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.embedding.vectors import Vectors
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.ctc import CTCHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.init import Initializer, Kaiming, Xavier
from anyformer.parts.norm import BatchNorm, LayerNorm, RowNorm
from anyformer.parts.position.absolute import Sinusoidal
from anyformer.parts.position.relative import RelativeSinusoids
from anyformer.parts.residual import Scaled
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rename, Reshape, Rule, Split

CONVOLUTION = "encoder.layers.convolution.op"
INIT: dict[str, Initializer] = {"*": Kaiming(gain=3**-0.5, normal=False)}  # as torch draws them: no spread is published


def macaron(half: Sublayer, attention: Sublayer, convolution: Sublayer, convolution_first: bool = False) -> Block:
    """A Conformer's steps between the halves of a feed-forward [Lu et al. 2019], and a norm at the end."""
    middle = [("attention", attention), ("convolution", convolution)]
    middle = middle[::-1] if convolution_first else middle
    return Block(half_before=half, **dict(middle), feedforward=half.replace(out_norm=LayerNorm()))


def odd(name: str, taps: int) -> None:
    """Classes that pad both ends alike lose a frame with an even number of taps."""
    if taps % 2 == 0:
        raise ValueError(f"{name} is odd, so that frames keep their places; got {taps}")


# -- as published ------------------------------------------------------------------------------------------------------


FIELDS: dict[str, ConfigField] = {
    **{
        name: field
        for name, field in transformer.FIELDS.items()
        if name not in ("init_std", "decoder_layerdrop", "is_causal")
    },
    **again(
        transformer.FIELDS,
        d_model=144,
        encoder_layers=16,
        encoder_attention_heads=4,
        encoder_ffn_dim=576,
        decoder_attention_heads=4,
        decoder_ffn_dim=576,
    ),
    "decoder_layers": Field(0, lambda spec: spec.decoder.depth if spec.pair else 0),  # 0: CTC
    "activation_dropout": Field(0.1, "encoder.layers.feedforward.op.dropout"),
    "attention_dropout": Field(0.1, "encoder.layers.attention.op.dropout"),
    "activation_function": Field("relu", activation_at("decoder.layers.feedforward.op.activation")),
    "conv_kernel_size": Field(32, f"{CONVOLUTION}.kernel"),
    "num_mel_bins": Field(80, "embedding.channels"),
    "subsampling_channels": Field(144, "embedding.width"),
    "vocab_size": Field(1025, "head.vocab_size"),  # word pieces, and a pad, which is the blank too
    "pad_token_id": Field(0, lambda spec: spec.padding_token if spec.pair else spec.head.blank),
    "decoder_start_token_id": Field(1, "start_token"),
    "max_target_positions": Field(512, "decoder_embedding.position.length"),
}


def describe(c: Any) -> Model:
    if c.d_model % c.encoder_attention_heads:
        raise ValueError(f"d_model {c.d_model} is not a multiple of {c.encoder_attention_heads} attention heads")
    transformer.check_padding(c, c.vocab_size)
    heads, norm = c.encoder_attention_heads, LayerNorm()

    def step(op: Any, **kind: Any) -> Sublayer:
        return Sublayer(pre_norm=norm, op=op, dropout=c.dropout, **kind)

    inner = MLP(width=c.encoder_ffn_dim, activation="silu", dropout=c.activation_dropout)
    attention = Attention(
        num_heads=heads,
        position=RelativeSinusoids(num_heads=heads),
        dropout=c.attention_dropout,
    )
    convolution = ConvolutionModule(kernel=c.conv_kernel_size, bias=True, masked=True)
    encoder = Stack(
        layers=macaron(step(inner, residual=Scaled(branch=0.5)), step(attention), step(convolution)),
        depth=c.encoder_layers,
        layer_drop=c.encoder_layerdrop,
    )
    embedding = SubsampledSpectrogram(
        channels=c.num_mel_bins, depth=2, width=c.subsampling_channels, separable=False, dropout=c.dropout
    )
    body: dict[str, Any] = {"width": c.d_model, "embedding": embedding, "encoder": encoder, "init": INIT}
    if not c.decoder_layers:
        return EncoderModel(**body, head=CTCHead(vocab_size=c.vocab_size, blank=c.pad_token_id, reduction="mean"))
    c.decoder_layerdrop = 0.0
    return EncoderDecoderModel(
        **body,
        decoder_embedding=TextEmbedding(
            tokens=Tokens(vocab_size=c.vocab_size, scale=c.d_model**0.5, padding_index=c.pad_token_id),
            position=Sinusoidal(length=c.max_target_positions),
            dropout=c.dropout,
        ),
        decoder=transformer.stack(c, "decoder"),
        start_token=c.decoder_start_token_id,
        padding_token=c.pad_token_id,
        head=LMHead(vocab_size=c.vocab_size, shift=False),
        ties=(("head.out.weight", "decoder_embedding.tokens.weight"),),
    )


def unpublished(spec: Model) -> list[Rule]:
    raise ValueError("no files of a conformer are published; load a folder that anyformer saved (spec.json)")


def size(shape: tuple[int, int, int], decoder: int = 0) -> dict[str, Any]:
    """Of the paper's table 1: width, layers, heads."""
    width, layers, heads = shape
    sides = {"attention_heads": heads, "ffn_dim": 4 * width}
    return {
        "d_model": width,
        "encoder_layers": layers,
        "decoder_layers": decoder,
        "subsampling_channels": width,
        **{f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in sides.items()},
        **({"eos_token_id": 1} if decoder else {}),
    }


SHAPES = {"s": ((144, 16, 4), "10.3 M"), "m": ((256, 16, 4), "30.7 M"), "l": ((512, 17, 8), "118.8 M")}

# -- torchaudio.models.Conformer ---------------------------------------------------------------------------------------

LAYERS: dict[str, ConfigField] = {
    "input_dim": Field(80, "width"),
    "num_heads": Field(4, "encoder.layers.attention.op.num_heads"),
    "ffn_dim": Field(128, "encoder.layers.feedforward.op.width"),
    "num_layers": Field(4, "encoder.depth"),
    "depthwise_conv_kernel_size": Field(31, f"{CONVOLUTION}.kernel"),
    "dropout": Field(0.0, "encoder.layers.attention.op.dropout"),
    "use_group_norm": Field(False, lambda spec: isinstance(spec.encoder.layers.steps["convolution"].op.norm, RowNorm)),
    "convolution_first": Field(False, lambda spec: list(spec.encoder.layers.steps)[1] == "convolution"),
}


def layers(c: Any) -> Model:
    if c.input_dim % c.num_heads:
        raise ValueError(f"input_dim {c.input_dim} is not a multiple of num_heads {c.num_heads}")
    odd("depthwise_conv_kernel_size", c.depthwise_conv_kernel_size)

    def step(op: Any, **kind: Any) -> Sublayer:
        return Sublayer(pre_norm=LayerNorm(), op=op, dropout=c.dropout, **kind)

    half = step(MLP(width=c.ffn_dim, activation="silu", dropout=c.dropout), residual=Scaled(branch=0.5))
    norm = RowNorm() if c.use_group_norm else BatchNorm()
    taps = ConvolutionModule(kernel=c.depthwise_conv_kernel_size, norm=norm, bias=True)
    attention = Attention(num_heads=c.num_heads, dropout=c.dropout)
    block = macaron(half, step(attention), step(taps), c.convolution_first)
    return EncoderModel(
        width=c.input_dim,
        embedding=Vectors(),
        encoder=Stack(layers=block, depth=c.num_layers),
        init={"*.op.[qkv].weight": Xavier(gain=2**-0.5), **INIT},
    )


def rules(spec: Any) -> list[Rule]:
    theirs, ours, width = "conformer_layers.{i}", "encoder.layers.{i}", spec.width
    attention, convolution = f"{ours}.attention", f"{ours}.convolution"
    names = {
        "self_attn_layer_norm": "attention.pre_norm",
        "self_attn.out_proj": "attention.op.o",
        "conv_module.layer_norm": "convolution.pre_norm",
        "conv_module.sequential.2": "convolution.op.taps",
        "conv_module.sequential.3": "convolution.op.norm",
        "final_layer_norm": "feedforward.out_norm",
    }
    for half, step in (("ffn1", "half_before"), ("ffn2", "feedforward")):
        places = {0: "pre_norm", 1: "op.up", 4: "op.down"}  # between them stand an activation and a dropout
        names |= {f"{half}.sequential.{place}": f"{step}.{name}" for place, name in places.items()}
    pointwise: list[Rule] = []
    for place, name, rows in ((0, "gate", 2 * width), (5, "out", width)):
        source, target = f"{theirs}.conv_module.sequential.{place}", f"{convolution}.op.{name}"
        pointwise.append(Reshape(f"{source}.weight", f"{target}.weight", (rows, width, 1)))
        pointwise.append(Rename(f"{source}.bias", f"{target}.bias"))
    return [
        *[
            Split(f"{theirs}.self_attn.in_proj_{p}", [f"{attention}.op.{n}.{p}" for n in "qkv"])
            for p in ("weight", "bias")
        ],
        *pointwise,
        *[Rename(f"{theirs}.{a}.{{p}}", f"{ours}.{b}.{{p}}") for a, b in names.items()],
    ]


FAMILIES = (
    Family(
        name="conformer",
        about="speech into text by convolutions and attention",
        fields=FIELDS,
        describe=describe,
        rules=unpublished,
        architectures=(),
        sizes={
            **{
                f"conformer-{name}": Size(size(shape), note=f"CTC; the paper's {count} have an LSTM transducer instead")
                for name, (shape, count) in SHAPES.items()
            },
            **{
                f"conformer-transformer-{name}": Size(size(shape, decoder=6), note="a Transformer writes")
                for name, (shape, _) in SHAPES.items()
            },
        },
    ),
    Family(
        name="torchaudio-conformer",
        about="the layers of a Conformer over vectors",
        fields=LAYERS,
        describe=layers,
        rules=rules,
        architectures=("Conformer",),
        library="torchaudio",
    ),
)
