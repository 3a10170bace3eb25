"""wav2vec 2.0 with Conformer layers [Baevski et al. 2020; Gulati et al. 2020; Wang et al. 2020]: a waveform stem, then
half-step feed-forward, attention, convolution, half-step feed-forward in each layer."""

from __future__ import annotations

from typing import Any

from anyformer.block import Block, Stack, Sublayer
from anyformer.families import speech
from anyformer.families.family import Absent, ConfigField, Family, Field, Inert, Size, activation_at
from anyformer.model import EncoderModel, Model
from anyformer.part import nearest
from anyformer.parts.activation import activation_named
from anyformer.parts.attention import Attention
from anyformer.parts.audio import ConvolutionAdapter, FrameHead, SpeechNeck, SpeechOutput
from anyformer.parts.conv import ConvolutionModule
from anyformer.parts.feedforward import MLP
from anyformer.parts.head import ClassifyHead, CTCHead, Head, Pool
from anyformer.parts.idle import Idle
from anyformer.parts.init import Kaiming, Normal, Value, Xavier
from anyformer.parts.neck import LayerMix
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position import AttentionPosition, Convolutional
from anyformer.parts.relative import InputRope, RelativeSinusoids
from anyformer.parts.residual import Scaled
from anyformer.weights.rules import Rename, Repeat, Reshape, Rule

ATTENTION, CONVOLUTION = "encoder.layers.attention", "encoder.layers.convolution"
MLP_OP = "encoder.layers.feedforward.op"
ADAPTER, POSITION = "encoder.neck.adapter", "embedding.position.part"
CLASSIFIERS = ("Wav2Vec2ConformerForSequenceClassification", "Wav2Vec2ConformerForAudioFrameClassification")


def position_type(spec: Any) -> str | None:
    kinds = {RelativeSinusoids: "relative", InputRope: "rotary"}
    return kinds.get(type(spec.encoder.layers.steps["attention"].op.position))


def rotary_base(spec: Any) -> float:
    if position_type(spec) != "rotary":
        raise Absent
    base = spec.encoder.layers.steps["attention"].op.position.base
    return int(base) if base.is_integer() else base


def mixes(spec: Any) -> bool:
    if spec.architecture not in CLASSIFIERS:
        raise Absent
    return isinstance(spec.encoder.neck, LayerMix)


FIELDS: dict[str, ConfigField] = {
    **speech.FIELDS,
    "hidden_size": Field(768, "width"),
    "num_hidden_layers": Field(12, "encoder.depth"),
    "num_attention_heads": Field(12, f"{ATTENTION}.op.num_heads"),
    "intermediate_size": Field(3072, f"{MLP_OP}.width"),
    "hidden_act": Field("gelu", activation_at(f"{MLP_OP}.activation")),
    "activation_dropout": Field(0.1, f"{MLP_OP}.dropout"),
    "attention_dropout": Field(0.1, f"{ATTENTION}.dropout"),
    "layerdrop": Field(0.1, "encoder.layer_drop"),
    "initializer_range": Field(0.02, lambda spec: spec.init["*"].std),
    "num_conv_pos_embeddings": Field(128, f"{POSITION}.kernel"),
    "num_conv_pos_embedding_groups": Field(16, f"{POSITION}.groups"),
    "use_weighted_layer_sum": Field(False, mixes),
    "add_adapter": Field(False, lambda spec: getattr(spec.encoder.neck, "adapter", None) is not None),
    "adapter_kernel_size": Field(3, f"{ADAPTER}.kernel"),
    "adapter_stride": Field(2, f"{ADAPTER}.stride"),
    "num_adapter_layers": Field(3, f"{ADAPTER}.depth"),
    "output_hidden_size": Field(None, f"{ADAPTER}.width"),
    "position_embeddings_type": Field("relative", position_type),
    "rotary_embedding_base": Field(10000, rotary_base),
    "conv_depthwise_kernel_size": Field(31, f"{CONVOLUTION}.op.kernel"),
    "conformer_conv_dropout": Field(0.1, f"{CONVOLUTION}.dropout"),
    "max_source_positions": Inert(5000, "how long a table is made at first; it grows with the input"),
}


def describe(c: Any) -> Model:
    if c.hidden_size % c.num_attention_heads:
        raise ValueError(f"hidden_size {c.hidden_size} is not a multiple of {c.num_attention_heads} attention heads")
    if c.add_adapter and c.architecture in CLASSIFIERS:
        raise ValueError(f"{c.architecture} has no adapter: add_adapter must be false")
    norm, last, activation = LayerNorm(), LayerNorm(eps=c.layer_norm_eps), activation_named(c.hidden_act)
    half = Sublayer(
        pre_norm=norm, op=MLP(width=c.intermediate_size, activation=activation, dropout=c.activation_dropout),
        residual=Scaled(branch=0.5), dropout=c.hidden_dropout,
    )  # fmt: skip
    attention = Attention(num_heads=c.num_attention_heads, position=position(c), dropout=c.attention_dropout)
    convolution = ConvolutionModule(kernel=c.conv_depthwise_kernel_size, activation=activation)
    out_width = c.output_hidden_size or c.hidden_size
    adapter = ConvolutionAdapter(
        width=out_width, depth=c.num_adapter_layers, kernel=c.adapter_kernel_size, stride=c.adapter_stride,
        layer_drop=c.layerdrop,
    ) if c.add_adapter else None  # fmt: skip
    mixed = c.use_weighted_layer_sum and c.architecture in CLASSIFIERS
    positional = Convolutional(
        kernel=c.num_conv_pos_embeddings, groups=c.num_conv_pos_embedding_groups,
        activation=activation_named(c.feat_extract_activation),
    )  # fmt: skip
    return EncoderModel(
        width=c.hidden_size,
        embedding=speech.waveform(c, Idle(part=positional)),  # the published class makes them and never adds them
        encoder=Stack(
            layers=Block(
                half_before=half,
                attention=Sublayer(pre_norm=norm, op=attention, dropout=c.attention_dropout),
                convolution=Sublayer(pre_norm=norm, op=convolution, dropout=c.conformer_conv_dropout),
                feedforward=half.replace(out_norm=norm),
            ),
            depth=c.num_hidden_layers,
            layer_drop=c.layerdrop,
            neck=LayerMix(rest=Idle(part=last)) if mixed else SpeechNeck(norm=last, adapter=adapter),
        ),
        head=head(c),
        init={
            **speech.init(c, POSITION),
            "*.convolution.op.norm.weight": Value(value=1.0),
            "*.convolution.op.*.weight": Kaiming(),
            "*.position.[uv]": Xavier(),
            f"{ADAPTER}.convolutions.*.weight": Kaiming(),
            f"{ADAPTER}.convolutions.*.bias": speech.around(out_width * c.adapter_kernel_size),
            "encoder.neck.weight": Value(value=1 / (c.num_hidden_layers + 1)),
            "*": Normal(std=c.initializer_range or 0.02),
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
    raise ValueError(f"position_embeddings_type {c.position_embeddings_type!r} is not valid; {valid}")


def head(c: Any) -> Head:
    match c.architecture:
        case "Wav2Vec2ConformerForCTC":
            if c.vocab_size is None:
                raise ValueError("Wav2Vec2ConformerForCTC needs vocab_size")
            return CTCHead(
                vocab_size=c.vocab_size, blank=c.pad_token_id, dropout=c.final_dropout, reduction=c.ctc_loss_reduction,
                zero_infinity=c.ctc_zero_infinity,
            )  # fmt: skip
        case "Wav2Vec2ConformerForSequenceClassification":
            pool = Pool(take="mean", dense=True, width=c.classifier_proj_size)
            return ClassifyHead(num_labels=c.num_labels, pool=pool, problem="single_label_classification")
        case "Wav2Vec2ConformerForAudioFrameClassification":
            return FrameHead(num_labels=c.num_labels)
    return SpeechOutput()


def rules(spec: Any) -> list[Rule]:
    layer, ours, width = "~encoder.layers.{i}", "encoder.layers.{i}", spec.width
    attention, convolution = f"{ours}.attention", f"{ours}.convolution"
    last = "rest.part" if isinstance(spec.encoder.neck, LayerMix) else "norm"
    out = "lm_head" if isinstance(spec.head, CTCHead) else "classifier"
    tables = [f"encoder.layers.{i}.attention.op.position.frequency.value" for i in range(spec.encoder.depth)]

    def half(theirs: str, mine: str) -> list[Rule]:
        return [
            Rename(f"{layer}.{theirs}_layer_norm.{{p}}", f"{ours}.{mine}.pre_norm.{{p}}"),
            Rename(f"{layer}.{theirs}.intermediate_dense.{{p}}", f"{ours}.{mine}.op.up.{{p}}"),
            Rename(f"{layer}.{theirs}.output_dense.{{p}}", f"{ours}.{mine}.op.down.{{p}}"),
        ]

    return [
        *speech.rules(POSITION),
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
        Rename("~adapter.proj.{p}", f"{ADAPTER}.project.{{p}}"),
        Rename("~adapter.proj_layer_norm.{p}", f"{ADAPTER}.norm.{{p}}"),
        Rename("~adapter.layers.{i}.conv.{p}", f"{ADAPTER}.convolutions.{{i}}.{{p}}"),
        Rename("layer_weights", "encoder.neck.weight"),
        Rename("projector.{p}", "head.pool.dense.{p}"),
        Rename(f"{out}.{{p}}", "head.out.{p}"),
    ]


LARGE = {
    "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
    "hidden_act": "swish", "feat_extract_norm": "layer", "conv_bias": True,
}  # fmt: skip

FAMILIES = (
    Family(
        name="wav2vec2-conformer",
        about="speech encoders and recognisers",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=("Wav2Vec2ConformerModel", "Wav2Vec2ConformerForCTC", *CLASSIFIERS),
        base=("Wav2Vec2ConformerModel",),
        prefix="wav2vec2_conformer.",
        legacy=speech.LEGACY,
        sizes={
            "wav2vec2-conformer-rel-pos-large": Size(LARGE),
            "wav2vec2-conformer-rope-large": Size({**LARGE, "position_embeddings_type": "rotary"}),
        },
    ),
)
