"""Parakeet [NVIDIA 2024]: a Fast Conformer [Gulati et al. 2020; Rekesh et al. 2023] over a spectrogram, and the letters
or pieces of words that CTC finds in its frames."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import GENERATION, ConfigField, Field, Ignored, activation_at
from anyformer.families.conformer import macaron, odd
from anyformer.families.shared.vision import head_width, heads_of
from anyformer.models import EncoderModel, Model
from anyformer.parts.activation import activation_named
from anyformer.parts.attention.attention import Attention
from anyformer.parts.convolution.conformer import ConvolutionModule
from anyformer.parts.embedding.subsampling import RealOutput, SubsampledSpectrogram
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.ctc import CTCHead
from anyformer.parts.init import Normal
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.relative import RelativeSinusoids
from anyformer.parts.residual import Scaled
from anyformer.specs.addresses import at
from anyformer.specs.messages import quote
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rename, Reshape, Rule

ATTENTION, MLP_OP = "encoder.layers.attention.op", "encoder.layers.feedforward.op"
CONVOLUTION = "encoder.layers.convolution.op"

FIELDS: dict[str, ConfigField] = {
    "hidden_size": Field(1024, "width"),
    "num_hidden_layers": Field(24, "encoder.depth"),
    "num_attention_heads": Field(8, f"{ATTENTION}.num_heads"),
    "head_dim": Field(None, head_width),
    "num_key_value_heads": Field(None, lambda spec: (op := at(spec, ATTENTION)).num_kv_heads or op.num_heads),
    "intermediate_size": Field(4096, f"{MLP_OP}.width"),
    "hidden_act": Field("silu", activation_at(f"{MLP_OP}.activation")),
    "attention_bias": Field(True, f"{MLP_OP}.bias"),
    "convolution_bias": Field(True, f"{CONVOLUTION}.bias"),
    "conv_kernel_size": Field(9, f"{CONVOLUTION}.kernel"),
    "subsampling_factor": Field(8, lambda spec: 2**spec.embedding.depth),
    "subsampling_conv_channels": Field(256, "embedding.width"),
    "subsampling_conv_kernel_size": Field(3, "embedding.kernel"),
    "subsampling_conv_stride": Field(2, "embedding.stride"),
    "num_mel_bins": Field(80, "embedding.channels"),
    "dropout": Field(0.1, "embedding.dropout"),
    "dropout_positions": Field(0.0, f"{ATTENTION}.position.dropout"),
    "layerdrop": Field(0.1, "encoder.layer_drop"),
    "activation_dropout": Field(0.1, f"{MLP_OP}.dropout"),
    "attention_dropout": Field(0.1, f"{ATTENTION}.dropout"),
    "max_position_embeddings": Ignored(5000, "the published table of positions is made as long as the input"),
    "scale_input": Field(True, lambda spec: spec.embedding.scale is not None),
    "initializer_range": Field(0.02, lambda spec: spec.init["*"].std),
    "tie_last_hidden_states": Ignored(None, "no norm follows the last layer"),
}


def encoder(c: Any) -> Model:
    heads, fewer, width = c.num_attention_heads, c.num_key_value_heads, heads_of(c)
    odd("conv_kernel_size", c.conv_kernel_size)
    norm, activation = LayerNorm(), activation_named(c.hidden_act)
    half = Sublayer(
        pre_norm=norm,
        residual=Scaled(branch=0.5),
        op=MLP(
            width=c.intermediate_size,
            activation=activation,
            bias=c.attention_bias,
            dropout=c.activation_dropout,
        ),
    )
    attention = Attention(
        num_heads=heads,
        num_kv_heads=None if fewer == heads else fewer,
        bias="qkvo" if c.attention_bias else "",
        position=RelativeSinusoids(
            num_heads=heads, width=c.hidden_size if width else None, dropout=c.dropout_positions
        ),
        head_width=width,
        dropout=c.attention_dropout,
    )
    convolution = ConvolutionModule(
        kernel=c.conv_kernel_size, activation=activation, bias=c.convolution_bias, masked=True
    )
    embedding = SubsampledSpectrogram(
        channels=c.num_mel_bins,
        depth=int(math.log2(c.subsampling_factor)),
        width=c.subsampling_conv_channels,
        kernel=c.subsampling_conv_kernel_size,
        stride=c.subsampling_conv_stride,
        scale=math.sqrt(c.hidden_size) if c.scale_input else None,
        dropout=c.dropout,
    )
    start = Normal(std=c.initializer_range)
    return EncoderModel(
        width=c.hidden_size,
        embedding=embedding,
        encoder=Stack(
            layers=macaron(half, Sublayer(pre_norm=norm, op=attention), Sublayer(pre_norm=norm, op=convolution)),
            depth=c.num_hidden_layers,
            layer_drop=c.layerdrop,
        ),
        head=RealOutput(),
        init={**{f"embedding.{place}.weight": start for place in embedding.places}, "*": start},
    )


def describe(c: Any) -> Model:
    config = c.encoder_config or {}
    if not isinstance(config, Mapping):
        raise ValueError(f"encoder_config={quote(config)} is not an object")
    head = CTCHead(
        vocab_size=c.vocab_size, blank=c.pad_token_id, reduction=c.ctc_loss_reduction, zero_infinity=c.ctc_zero_infinity
    )
    return ENCODER.part(config, ENCODER.architectures[0]).replace(head=head)


def rules(spec: Any) -> list[Rule]:
    layer, ours, width = "~layers.{i}", "encoder.layers.{i}", spec.width
    convolution = f"{ours}.convolution"

    def half(theirs: str, mine: str) -> list[Rule]:
        return [
            Rename(f"{layer}.norm_{theirs}.{{p}}", f"{ours}.{mine}.pre_norm.{{p}}"),
            Rename(f"{layer}.{theirs}.linear1.{{p}}", f"{ours}.{mine}.op.up.{{p}}"),
            Rename(f"{layer}.{theirs}.linear2.{{p}}", f"{ours}.{mine}.op.down.{{p}}"),
        ]

    def pointwise(number: int, mine: str, rows: int) -> list[Rule]:
        theirs = f"{layer}.conv.pointwise_conv{number}"
        return [
            Reshape(f"{theirs}.weight", f"{convolution}.op.{mine}.weight", (rows, width, 1)),
            Rename(f"{theirs}.bias", f"{convolution}.op.{mine}.bias"),
        ]

    return [
        Rename("~subsampling.layers.0.{p}", "embedding.first.{p}"),
        *[  # between them stand activations
            Rename(f"~subsampling.layers.{3 * i + place}.{{p}}", f"embedding.{kind}.{i}.{{p}}")
            for i in range(spec.embedding.depth - 1)
            for place, kind in ((2, "depthwise"), (3, "pointwise"))
        ],
        Rename("~subsampling.linear.{p}", "embedding.project.{p}"),
        *half("feed_forward1", "half_before"),
        Rename(f"{layer}.norm_self_att.{{p}}", f"{ours}.attention.pre_norm.{{p}}"),
        *[Rename(f"{layer}.self_attn.{n}_proj.{{p}}", f"{ours}.attention.op.{n}.{{p}}") for n in "qkvo"],
        Rename(f"{layer}.self_attn.relative_k_proj.weight", f"{ours}.attention.op.position.project.weight"),
        *[Rename(f"{layer}.self_attn.bias_{n}", f"{ours}.attention.op.position.{n}") for n in "uv"],
        Rename(f"{layer}.norm_conv.{{p}}", f"{convolution}.pre_norm.{{p}}"),
        *pointwise(1, "gate", 2 * width),
        Rename(f"{layer}.conv.depthwise_conv.{{p}}", f"{convolution}.op.taps.{{p}}"),
        Rename(f"{layer}.conv.norm.{{p}}", f"{convolution}.op.norm.{{p}}"),
        *pointwise(2, "out", width),
        *half("feed_forward2", "feedforward"),
        Rename(f"{layer}.norm_out.{{p}}", f"{ours}.feedforward.out_norm.{{p}}"),
        *(
            [
                Reshape("ctc_head.weight", "head.out.weight", (spec.head.vocab_size, width, 1)),
                Rename("ctc_head.bias", "head.out.bias"),
            ]
            if isinstance(spec.head, CTCHead)
            else []
        ),
    ]


ENCODER = Family(
    name="parakeet_encoder",
    about="Parakeet's encoder alone",
    fields=FIELDS,
    describe=encoder,
    rules=rules,
    architectures=("ParakeetEncoder",),
    base=("ParakeetEncoder",),
    prefix="encoder.",
)
FAMILIES = (
    Family(
        name="parakeet_ctc",
        about="speech into text by a Conformer over a spectrogram",
        fields={
            "encoder_config": Field({}, ENCODER.recover, frozenset((*ENCODER.known, *GENERATION))),
            "vocab_size": Field(1025, "head.vocab_size"),
            "pad_token_id": Field(1024, "head.blank"),
            "ctc_loss_reduction": Field("mean", "head.reduction", choices=("sum", "mean")),
            "ctc_zero_infinity": Field(True, "head.zero_infinity"),
            "initializer_range": Ignored(0.02, "what counts is the encoder's own"),
            "tie_last_hidden_states": Ignored(None, "no norm follows the last layer"),
        },
        describe=describe,
        rules=rules,
        architectures=("ParakeetForCTC",),
        prefix="encoder.",
        sizes={
            "parakeet-ctc-0.6b": Size({"encoder_config": {}}),
            "parakeet-ctc-1.1b": Size({"encoder_config": {"num_hidden_layers": 42}}),
        },
    ),
    ENCODER,
)
