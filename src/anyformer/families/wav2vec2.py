"""wav2vec 2.0 [Baevski et al. 2020]: a waveform through convolutions and a Transformer, which learn from sound alone
what is behind hidden frames; then letters, labels or voices with few examples."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field
from anyformer.families.base.template import Config
from anyformer.families.shared import speech
from anyformer.models import EncoderModel, Model
from anyformer.parts.activation import activation_named
from anyformer.parts.attention.attention import Attention
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.layer_mix import LayerMix
from anyformer.parts.norm import LayerNorm
from anyformer.specs.addresses import at
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rename, Rule

POSITION = "embedding.position"


def is_stable(spec: Model) -> bool:
    return at(spec, "embedding.out_norm") is None


FIELDS: dict[str, ConfigField] = {
    **speech.FIELDS,
    "vocab_size": Field(32, "head.vocab_size"),
    "do_stable_layer_norm": Field(False, is_stable),
    "num_conv_pos_embeddings": Field(128, f"{POSITION}.kernel"),
    "num_conv_pos_embedding_groups": Field(16, f"{POSITION}.groups"),
    "adapter_attn_dim": Field(None, "encoder.layers.adapter.op.width"),
}


def describe(c: Config) -> Model:
    speech.check(c)
    norm, stable = LayerNorm(eps=c.layer_norm_eps), c.do_stable_layer_norm
    place: dict[str, Any] = {"pre_norm" if stable else "out_norm": norm}
    attention = Attention(num_heads=c.num_attention_heads, dropout=c.attention_dropout)
    mlp = MLP(width=c.intermediate_size, activation=activation_named(c.hidden_act), dropout=c.activation_dropout)
    steps = {"attention": attention, "feedforward": mlp}
    block = {name: Sublayer(op=op, dropout=c.hidden_dropout, **place) for name, op in steps.items()}
    if stable and c.adapter_attn_dim is not None:  # of one language each [Pratap et al. 2023]
        block["adapter"] = Sublayer(pre_norm=LayerNorm(), op=MLP(width=c.adapter_attn_dim, activation="relu"))
    return EncoderModel(
        width=c.hidden_size,
        embedding=speech.waveform(c, speech.positional(c), None if stable else norm),
        encoder=Stack(
            layers=Block(**block),
            depth=c.num_hidden_layers,
            layer_drop=c.layerdrop,
            neck=speech.neck(c, norm if stable else None),
        ),
        head=speech.head(c),
        init=speech.init(c, POSITION),
    )


def rules(spec: Model) -> list[Rule]:
    layer, ours = "~encoder.layers.{i}", "encoder.layers.{i}"
    stable, mixed = is_stable(spec), isinstance(at(spec, "encoder.neck"), LayerMix)
    place, last = "pre_norm" if stable else "out_norm", "embedding.out_norm"
    if stable:
        last = "encoder.neck.rest.part" if mixed else "encoder.neck.norm"
    return [
        *speech.rules(spec, POSITION),
        *[Rename(f"{layer}.attention.{n}_proj.{{p}}", f"{ours}.attention.op.{n}.{{p}}") for n in "qkv"],
        Rename(f"{layer}.attention.out_proj.{{p}}", f"{ours}.attention.op.o.{{p}}"),
        Rename(f"{layer}.layer_norm.{{p}}", f"{ours}.attention.{place}.{{p}}"),
        Rename(f"{layer}.feed_forward.intermediate_dense.{{p}}", f"{ours}.feedforward.op.up.{{p}}"),
        Rename(f"{layer}.feed_forward.output_dense.{{p}}", f"{ours}.feedforward.op.down.{{p}}"),
        Rename(f"{layer}.final_layer_norm.{{p}}", f"{ours}.feedforward.{place}.{{p}}"),
        Rename(f"{layer}.adapter_layer.norm.{{p}}", f"{ours}.adapter.pre_norm.{{p}}"),
        Rename(f"{layer}.adapter_layer.linear_1.{{p}}", f"{ours}.adapter.op.up.{{p}}"),
        Rename(f"{layer}.adapter_layer.linear_2.{{p}}", f"{ours}.adapter.op.down.{{p}}"),
        Rename("~encoder.layer_norm.{p}", f"{last}.{{p}}"),
    ]


LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "codevector_dim": 768,
    "proj_codevector_dim": 768,
}
STABLE = {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True}

FAMILIES = (
    Family(
        name="wav2vec2",
        about="speech encoders that learn without labels, and recognisers",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=("Wav2Vec2Model", *(f"Wav2Vec2{kind}" for kind in speech.KINDS)),
        base=("Wav2Vec2Model",),
        prefix="wav2vec2.",
        legacy=speech.LEGACY,
        sizes={
            "wav2vec2-base": Size({}, 95e6),
            "wav2vec2-large": Size(LARGE, 317e6),
            "wav2vec2-large-stable": Size({**LARGE, **STABLE}, 317e6, "as wav2vec2-large-lv60 and XLSR-53"),
        },
    ),
)
