"""wav2vec 2.0 with Conformer layers [Baevski et al. 2020; Gulati et al. 2020; Wang et al. 2020]: a waveform stem, then
half-step feed-forward, attention, convolution and half-step feed-forward in each layer."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, Ignored
from anyformer.families.base.template import Config, Entry, activation, entry, parameter
from anyformer.families.conformer import check_odd, macaron
from anyformer.families.shared import speech
from anyformer.parts import (
    Attention, ConvolutionModule, EncoderModel, Initializer, InputRope, Kaiming, LayerNorm, MLP, RelativeSinusoids,
    Scaled, SpeechNeck, Stack, Sublayer, Unused, Value, Xavier,
)  # fmt: skip
from anyformer.parts.position.absolute import AttentionPosition
from anyformer.specs.addresses import value_at
from anyformer.specs.messages import nearest, quote
from anyformer.weights.rules import Repeat, Rule

ATTENTION, CONVOLUTION = "encoder.layers.attention", "encoder.layers.convolution"
POSITION, LAYER = "embedding.position.part", "encoder.layers.{i}"

NORM = LayerNorm(eps=1e-5)
TEMPLATE = EncoderModel(
    width=768,
    # the published class creates these positions but never adds them
    embedding=speech.EMBEDDING.replace(position=Unused(part=speech.POSITION)),
    encoder=Stack(
        depth=12,
        layers=macaron(
            Sublayer(
                pre_norm=NORM,
                op=MLP(width=3072, activation="gelu", dropout=0.1),
                residual=Scaled(branch=0.5),
                dropout=0.1,
            ),
            Sublayer(
                pre_norm=NORM,
                op=Attention(num_heads=12, position=RelativeSinusoids(num_heads=12), dropout=0.1),
                dropout=0.1,
            ),
            Sublayer(pre_norm=NORM, op=ConvolutionModule(kernel=31, activation="gelu"), dropout=0.1),
        ),
        layer_drop=0.1,
        neck=SpeechNeck(norm=NORM),
    ),
)


def position(kind: str | None, c: Config) -> AttentionPosition | None:
    match kind:
        case None:
            return None
        case "relative":
            return RelativeSinusoids(num_heads=c.num_attention_heads)
        case "rotary":
            return InputRope(base=c.rotary_embedding_base)
    raise ValueError(f"position_embeddings_type={quote(kind)} is not valid; {nearest(kind, ('relative', 'rotary'))}")


def rotary_base(spec: EncoderModel) -> float:
    if not isinstance(rotary := value_at(spec, f"{ATTENTION}.op.position"), InputRope):
        raise Absent
    return int(rotary.base) if rotary.base.is_integer() else rotary.base


def init(c: Config) -> dict[str, Initializer]:
    return {
        "*.convolution.op.norm.weight": Value(value=1.0),
        "*.convolution.op.*.weight": Kaiming(),
        "*.position.[uv]": Xavier(),
        **speech.init(c, POSITION),
    }


CONFIG: dict[str, Any] = {
    **speech.CONFIG,
    "hidden_act": activation("encoder.layers.*.op[MLP].activation", f"{CONVOLUTION}.op.activation"),
    "attention_dropout": (f"{ATTENTION}.op.dropout", f"{ATTENTION}.dropout"),
    "hidden_dropout": ("embedding.dropout", "encoder.layers.half_before.dropout", "encoder.layers.feedforward.dropout"),
    "layer_norm_eps": "embedding.norm.eps",
    "feat_extract_activation": activation(f"{speech.STEM}.activation", f"{POSITION}.activation"),
    "vocab_size": entry("head.vocab_size", default=None),
    "num_conv_pos_embeddings": f"{POSITION}.kernel",
    "num_conv_pos_embedding_groups": f"{POSITION}.groups",
    "position_embeddings_type": entry(
        f"{ATTENTION}.op.position",
        read=position,
        write=lambda part: {RelativeSinusoids: "relative", InputRope: "rotary"}.get(type(part)),
    ),
    "rotary_embedding_base": Entry(10000, rotary_base),
    "conv_depthwise_kernel_size": f"{CONVOLUTION}.op.kernel",
    "conformer_conv_dropout": f"{CONVOLUTION}.dropout",
    "max_source_positions": Ignored(5000, "the initial length of a table that grows with the input"),
}


def frequencies(theirs: str, spec: EncoderModel) -> list[Rule]:
    """Rules of the rotary frequencies: published as one table for all layers."""
    depth = value_at(spec, "encoder.depth")
    return [Repeat(theirs, [f"encoder.layers.{i}.attention.op.position.frequency.value" for i in range(depth)])]


WEIGHTS: dict[str, Any] = {
    **speech.weights(POSITION),
    "~encoder.layers.{i}.ffn{1,2}_layer_norm": f"{LAYER}.{{half_before,feedforward}}.pre_norm",
    "~encoder.layers.{i}.ffn{1,2}.{intermediate,output}_dense": f"{LAYER}.{{half_before,feedforward}}.op.{{up,down}}",
    "~encoder.layers.{i}.self_attn_layer_norm": f"{LAYER}.attention.pre_norm",
    "~encoder.layers.{i}.self_attn.linear_{q,k,v,out,pos}": f"{LAYER}.attention.op.{{q,k,v,o,position.project}}",
    "~encoder.layers.{i}.self_attn.pos_bias_{u,v}": parameter(f"{LAYER}.attention.op.position.{{u,v}}"),
    "~encoder.embed_positions.inv_freq": frequencies,
    "~encoder.layers.{i}.conv_module.layer_norm": f"{LAYER}.convolution.pre_norm",
    "~encoder.layers.{i}.conv_module.pointwise_conv1": speech.pointwise(f"{LAYER}.convolution.op.gate"),
    "~encoder.layers.{i}.conv_module.{depthwise_conv,batch_norm}": f"{LAYER}.convolution.op.{{taps,norm}}",
    "~encoder.layers.{i}.conv_module.pointwise_conv2": speech.pointwise(f"{LAYER}.convolution.op.out"),
    "~encoder.layers.{i}.final_layer_norm": f"{LAYER}.feedforward.out_norm",
    "~encoder.layer_norm": speech.one_of("encoder.neck.norm", "encoder.neck.rest.part"),
}
LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "hidden_act": "swish",
    "feat_extract_norm": "layer",
    "conv_bias": True,
}

WAV2VEC2_CONFORMER = Family(
    name="wav2vec2-conformer",
    about="speech encoders and speech recognition with Conformer layers",
    tokenizer="Wav2Vec2CTCTokenizer",
    template=TEMPLATE,
    classes=speech.classes("Wav2Vec2Conformer"),
    config=CONFIG,
    computed={
        "encoder.neck": lambda c: speech.neck(c, LayerNorm(eps=c.layer_norm_eps)),
        "head.features": lambda c: c.conv_dim[-1],
        "init": init,
    },
    weights=WEIGHTS,
    prefix="wav2vec2_conformer.",
    checks=(speech.check, lambda c: check_odd("conv_depthwise_kernel_size", c.conv_depthwise_kernel_size)),
    legacy=speech.LEGACY,
    sizes={
        "wav2vec2-conformer-rel-pos-large": Size(LARGE),
        "wav2vec2-conformer-rope-large": Size({**LARGE, "position_embeddings_type": "rotary"}),
    },
)
