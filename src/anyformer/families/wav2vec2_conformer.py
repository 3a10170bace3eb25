"""wav2vec 2.0 with Conformer layers [Baevski et al. 2020; Gulati et al. 2020; Wang et al. 2020]: a waveform stem, then
half-step feed-forward, attention, convolution, half-step feed-forward in each layer."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, ConfigField, Field, Ignored
from anyformer.families.conformer import macaron, odd
from anyformer.families.shared import speech
from anyformer.models import EncoderModel, Model
from anyformer.parts.activation import activation_named
from anyformer.parts.attention.attention import Attention
from anyformer.parts.convolution.conformer import ConvolutionModule
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.init import Kaiming, Value, Xavier
from anyformer.parts.layer_mix import LayerMix
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.absolute import AttentionPosition
from anyformer.parts.position.relative import InputRope, RelativeSinusoids
from anyformer.parts.residual import Scaled
from anyformer.parts.unused import Unused
from anyformer.specs.messages import quote
from anyformer.specs.part import nearest
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rename, Repeat, Reshape, Rule

CONVOLUTION, POSITION = "encoder.layers.convolution", "embedding.position.part"


def position_type(spec: Any) -> str | None:
    kinds = {RelativeSinusoids: "relative", InputRope: "rotary"}
    return kinds.get(type(spec.encoder.layers.steps["attention"].op.position))


def rotary_base(spec: Any) -> float:
    if position_type(spec) != "rotary":
        raise Absent
    base = spec.encoder.layers.steps["attention"].op.position.base
    return int(base) if base.is_integer() else base


FIELDS: dict[str, ConfigField] = {
    **speech.FIELDS,
    "num_conv_pos_embeddings": Field(128, f"{POSITION}.kernel"),
    "num_conv_pos_embedding_groups": Field(16, f"{POSITION}.groups"),
    "position_embeddings_type": Field("relative", position_type),
    "rotary_embedding_base": Field(10000, rotary_base),
    "conv_depthwise_kernel_size": Field(31, f"{CONVOLUTION}.op.kernel"),
    "conformer_conv_dropout": Field(0.1, f"{CONVOLUTION}.dropout"),
    "max_source_positions": Ignored(5000, "how long a table is made at first; it grows with the input"),
}


def describe(c: Any) -> Model:
    speech.check(c)
    odd("conv_depthwise_kernel_size", c.conv_depthwise_kernel_size)
    norm, activation = LayerNorm(), activation_named(c.hidden_act)
    half = Sublayer(
        pre_norm=norm,
        op=MLP(width=c.intermediate_size, activation=activation, dropout=c.activation_dropout),
        residual=Scaled(branch=0.5),
        dropout=c.hidden_dropout,
    )
    attention = Attention(num_heads=c.num_attention_heads, position=position(c), dropout=c.attention_dropout)
    convolution = ConvolutionModule(kernel=c.conv_depthwise_kernel_size, activation=activation)
    return EncoderModel(
        width=c.hidden_size,
        # the published class makes these positions and never adds them
        embedding=speech.waveform(c, Unused(part=speech.positional(c))),
        encoder=Stack(
            layers=macaron(
                half,
                Sublayer(pre_norm=norm, op=attention, dropout=c.attention_dropout),
                Sublayer(pre_norm=norm, op=convolution, dropout=c.conformer_conv_dropout),
            ),
            depth=c.num_hidden_layers,
            layer_drop=c.layerdrop,
            neck=speech.neck(c, LayerNorm(eps=c.layer_norm_eps)),
        ),
        head=speech.head(c),
        init={
            "*.convolution.op.norm.weight": Value(value=1.0),
            "*.convolution.op.*.weight": Kaiming(),
            "*.position.[uv]": Xavier(),
            **speech.init(c, POSITION),
        },
    )


def position(c: Any) -> AttentionPosition | None:
    match c.position_embeddings_type:
        case None:
            return None
        case "relative":
            return RelativeSinusoids(num_heads=c.num_attention_heads)
        case "rotary":
            return InputRope(base=c.rotary_embedding_base)
    valid = nearest(c.position_embeddings_type, ("relative", "rotary"))
    raise ValueError(f"position_embeddings_type {quote(c.position_embeddings_type)} is not valid; {valid}")


def rules(spec: Any) -> list[Rule]:
    layer, ours, width = "~encoder.layers.{i}", "encoder.layers.{i}", spec.width
    attention, convolution = f"{ours}.attention", f"{ours}.convolution"
    last = "rest.part" if isinstance(spec.encoder.neck, LayerMix) else "norm"
    tables = [f"encoder.layers.{i}.attention.op.position.frequency.value" for i in range(spec.encoder.depth)]

    def half(theirs: str, mine: str) -> list[Rule]:
        return [
            Rename(f"{layer}.{theirs}_layer_norm.{{p}}", f"{ours}.{mine}.pre_norm.{{p}}"),
            Rename(f"{layer}.{theirs}.intermediate_dense.{{p}}", f"{ours}.{mine}.op.up.{{p}}"),
            Rename(f"{layer}.{theirs}.output_dense.{{p}}", f"{ours}.{mine}.op.down.{{p}}"),
        ]

    return [
        *speech.rules(spec, POSITION),
        *half("ffn1", "half_before"),
        Rename(f"{layer}.self_attn_layer_norm.{{p}}", f"{attention}.pre_norm.{{p}}"),
        *[Rename(f"{layer}.self_attn.linear_{n}.{{p}}", f"{attention}.op.{n}.{{p}}") for n in "qkv"],
        Rename(f"{layer}.self_attn.linear_out.{{p}}", f"{attention}.op.o.{{p}}"),
        Rename(f"{layer}.self_attn.linear_pos.weight", f"{attention}.op.position.project.weight"),
        *[Rename(f"{layer}.self_attn.pos_bias_{n}", f"{attention}.op.position.{n}") for n in "uv"],
        Repeat("~encoder.embed_positions.inv_freq", tables),
        Rename(f"{layer}.conv_module.layer_norm.{{p}}", f"{convolution}.pre_norm.{{p}}"),
        Reshape(f"{layer}.conv_module.pointwise_conv1.weight", f"{convolution}.op.gate.weight", (2 * width, width, 1)),
        Rename(f"{layer}.conv_module.depthwise_conv.weight", f"{convolution}.op.taps.weight"),
        Rename(f"{layer}.conv_module.batch_norm.{{p}}", f"{convolution}.op.norm.{{p}}"),
        Reshape(f"{layer}.conv_module.pointwise_conv2.weight", f"{convolution}.op.out.weight", (width, width, 1)),
        *half("ffn2", "feedforward"),
        Rename(f"{layer}.final_layer_norm.{{p}}", f"{ours}.feedforward.out_norm.{{p}}"),
        Rename("~encoder.layer_norm.{p}", f"encoder.neck.{last}.{{p}}"),
    ]


LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "hidden_act": "swish",
    "feat_extract_norm": "layer",
    "conv_bias": True,
}

FAMILIES = (
    Family(
        name="wav2vec2-conformer",
        about="speech encoders and recognisers",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=("Wav2Vec2ConformerModel", *(f"Wav2Vec2Conformer{kind}" for kind in speech.KINDS)),
        base=("Wav2Vec2ConformerModel",),
        prefix="wav2vec2_conformer.",
        legacy=speech.LEGACY,
        sizes={
            "wav2vec2-conformer-rel-pos-large": Size(LARGE),
            "wav2vec2-conformer-rope-large": Size({**LARGE, "position_embeddings_type": "rotary"}),
        },
    ),
)
