"""Parakeet [NVIDIA 2024]: a Fast Conformer [Gulati et al. 2020; Rekesh et al. 2023] over a spectrogram with a CTC head
for letters or word pieces."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import GENERATION, Ignored
from anyformer.families.base.template import Class, Config, Entry, activation, entry, parameter
from anyformer.families.conformer import check_odd, macaron
from anyformer.families.shared.speech import pointwise
from anyformer.families.shared.vision import head_width, read_head_width
from anyformer.parts import (
    Attention, CTCHead, ConvolutionModule, EncoderModel, Initializer, LayerNorm, MLP, Model, Normal, RealOutput,
    RelativeSinusoids, Scaled, Stack, Sublayer, SubsampledSpectrogram,
)  # fmt: skip
from anyformer.specs.addresses import value_at
from anyformer.specs.messages import quote
from anyformer.weights.rules import Rename, Rule

ATTENTION, CONVOLUTION = "encoder.layers.attention.op", "encoder.layers.convolution.op"
MLPS, LAYER = "encoder.layers.*.op[MLP]", "encoder.layers.{i}"


def init(depth: int, std: float) -> dict[str, Initializer]:
    start = Normal(std=std)
    return {**{f"embedding.{place}.weight": start for place in SubsampledSpectrogram(depth=depth).places}, "*": start}


NORM = LayerNorm(eps=1e-5)
TEMPLATE = EncoderModel(
    width=1024,
    embedding=SubsampledSpectrogram(channels=80, depth=3, width=256, kernel=3, stride=2, scale=32.0, dropout=0.1),
    encoder=Stack(
        depth=24,
        layers=macaron(
            Sublayer(
                pre_norm=NORM,
                residual=Scaled(branch=0.5),
                op=MLP(width=4096, activation="silu", bias=True, dropout=0.1),
            ),
            Sublayer(pre_norm=NORM, op=Attention(num_heads=8, position=RelativeSinusoids(num_heads=8), dropout=0.1)),
            Sublayer(pre_norm=NORM, op=ConvolutionModule(kernel=9, activation="silu", bias=True, masked=True)),
        ),
        layer_drop=0.1,
    ),
    init=init(3, 0.02),
)


def halvings(factor: int) -> int:
    return int(math.log2(factor))


CONFIG: dict[str, Any] = {
    "hidden_size": "width",
    "num_hidden_layers": "encoder.depth",
    "num_attention_heads": (f"{ATTENTION}.num_heads", f"{ATTENTION}.position.num_heads"),
    "head_dim": entry(f"{ATTENTION}.head_width", default=None, read=lambda _, c: read_head_width(c), path=head_width),
    "num_key_value_heads": entry(
        f"{ATTENTION}.num_kv_heads",
        default=None,
        read=lambda value, c: None if value == c.num_attention_heads else value,
        path=lambda spec: (op := value_at(spec, ATTENTION)).num_kv_heads or op.num_heads,
    ),
    "intermediate_size": f"{MLPS}.width",
    "hidden_act": activation(f"{MLPS}.activation", f"{CONVOLUTION}.activation"),
    "attention_bias": f"{MLPS}.bias",  # attention has the same bias
    "convolution_bias": f"{CONVOLUTION}.bias",
    "conv_kernel_size": f"{CONVOLUTION}.kernel",
    "subsampling_factor": entry("embedding.depth", read=lambda value, c: halvings(value), write=lambda depth: 2**depth),
    "subsampling_conv_channels": "embedding.width",
    "subsampling_conv_kernel_size": "embedding.kernel",
    "subsampling_conv_stride": "embedding.stride",
    "num_mel_bins": "embedding.channels",
    "dropout": "embedding.dropout",
    "dropout_positions": f"{ATTENTION}.position.dropout",
    "layerdrop": "encoder.layer_drop",
    "activation_dropout": f"{MLPS}.dropout",
    "attention_dropout": f"{ATTENTION}.dropout",
    "max_position_embeddings": Ignored(5000, "the published position table grows with the input"),
    "scale_input": entry(
        "embedding.scale",
        read=lambda value, c: math.sqrt(c.hidden_size) if value else None,
        write=lambda scale: scale is not None,
    ),
    "initializer_range": Entry(0.02, lambda spec: spec.init["*"].std),
    "tie_last_hidden_states": Ignored(None, "no norm follows the last layer"),
    "problem_type": None,
}


def convolutions(theirs: str, spec: EncoderModel) -> list[Rule]:
    """Rules of the stem's convolutions; every third published layer is an activation."""
    return [
        Rename(f"{theirs}.{3 * i + offset}.{{p}}", f"embedding.{kind}.{i}.{{p}}")
        for i in range(value_at(spec, "embedding.depth") - 1)
        for offset, kind in ((2, "depthwise"), (3, "pointwise"))
    ]


WEIGHTS: dict[str, Any] = {
    "~subsampling.layers.0": "embedding.first",
    "~subsampling.layers": convolutions,
    "~subsampling.linear": "embedding.project",
    "~layers.{i}.norm_feed_forward{1,2}": f"{LAYER}.{{half_before,feedforward}}.pre_norm",
    "~layers.{i}.feed_forward{1,2}.linear{1,2}": f"{LAYER}.{{half_before,feedforward}}.op.{{up,down}}",
    "~layers.{i}.norm_{self_att,conv}": f"{LAYER}.{{attention,convolution}}.pre_norm",
    "~layers.{i}.self_attn.{q,k,v,o,relative_k}_proj": f"{LAYER}.attention.op.{{q,k,v,o,position.project}}",
    "~layers.{i}.self_attn.bias_{u,v}": parameter(f"{LAYER}.attention.op.position.{{u,v}}"),
    "~layers.{i}.conv.pointwise_conv1": pointwise(f"{LAYER}.convolution.op.gate"),
    "~layers.{i}.conv.{depthwise_conv,norm}": f"{LAYER}.convolution.op.{{taps,norm}}",
    "~layers.{i}.conv.pointwise_conv2": pointwise(f"{LAYER}.convolution.op.out"),
    "~layers.{i}.norm_out": f"{LAYER}.feedforward.out_norm",
}

ENCODER = Family(
    name="parakeet_encoder",
    about="Parakeet's encoder",
    template=TEMPLATE,
    classes={"ParakeetEncoder": Class(RealOutput(), prefix="")},
    config=CONFIG,
    computed={
        f"{ATTENTION}.bias": lambda c: "qkvo" if c.attention_bias else "",
        f"{ATTENTION}.position.width": lambda c: c.hidden_size if read_head_width(c) else None,
        "init": lambda c: init(halvings(c.subsampling_factor), c.initializer_range),
    },
    weights=WEIGHTS,
    prefix="encoder.",
    checks=(lambda c: check_odd("conv_kernel_size", c.conv_kernel_size),),
)


def read_encoder(spec: EncoderModel, config: Any, c: Config) -> Model:
    if not isinstance(config or {}, Mapping):
        raise ValueError(f"encoder_config must be an object, got {quote(config)}")
    return ENCODER.part(config or {}, "ParakeetEncoder").replace(head=spec.head)


PARAKEET = Family(
    name="parakeet_ctc",
    about="speech recognition with a Conformer over a spectrogram",
    template=TEMPLATE,
    classes={
        "ParakeetForCTC": Class(CTCHead(vocab_size=1025, blank=1024, reduction="mean", zero_infinity=True)),
    },
    config={
        "encoder_config": Entry({}, ENCODER.recover, frozenset((*ENCODER.all_fields, *GENERATION)), build=read_encoder),
        "vocab_size": "head.vocab_size",
        "pad_token_id": "head.blank",
        "ctc_loss_reduction": entry("head.reduction", choices=("sum", "mean")),
        "ctc_zero_infinity": "head.zero_infinity",
        "initializer_range": Ignored(0.02, "encoder_config decides"),
        "tie_last_hidden_states": Ignored(None, "no norm follows the last layer"),
        "problem_type": None,
    },
    weights={**WEIGHTS, "ctc_head": pointwise("head.out")},
    prefix="encoder.",
    sizes={
        "parakeet-ctc-0.6b": Size({"encoder_config": {}}),
        "parakeet-ctc-1.1b": Size({"encoder_config": {"num_hidden_layers": 42}}),
    },
)
