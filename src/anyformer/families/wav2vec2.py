"""wav2vec 2.0 [Baevski et al. 2020]: convolutions and a Transformer over a waveform, pretrained without labels to
identify masked frames, then fine-tuned for transcripts, labels or speakers."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.template import Config, Entry, activation
from anyformer.families.shared import speech
from anyformer.families.shared.speech import one_of
from anyformer.parts import Attention, Block, EncoderModel, LayerNorm, MLP, Stack, Sublayer
from anyformer.specs.addresses import value_at

POSITION, LAYER = "embedding.position", "encoder.layers.{i}"

NORM = LayerNorm(eps=1e-5)
TEMPLATE = EncoderModel(
    width=768,
    embedding=speech.EMBEDDING.replace(out_norm=NORM),
    encoder=Stack(
        depth=12,
        layers=Block(
            attention=Sublayer(op=Attention(num_heads=12, dropout=0.1), out_norm=NORM, dropout=0.1),
            feedforward=Sublayer(op=MLP(width=3072, activation="gelu", dropout=0.1), out_norm=NORM, dropout=0.1),
        ),
        layer_drop=0.1,
    ),
)


def norm_first(spec: EncoderModel, stable: bool, c: Config) -> EncoderModel:
    """With do_stable_layer_norm, make the layers pre-norm and add adapters if adapter_attn_dim is set."""
    if not stable:
        return spec
    stack = value_at(spec, "encoder")
    steps = {name: step.replace(pre_norm=step.out_norm, out_norm=None) for name, step in stack.layers.steps.items()}
    if c.adapter_attn_dim is not None:  # per-language adapters [Pratap et al. 2023]
        steps["adapter"] = Sublayer(pre_norm=LayerNorm(), op=MLP(width=c.adapter_attn_dim, activation="relu"))
    return spec.replace(embedding=spec.embedding.replace(out_norm=None), encoder=stack.replace(layers=Block(**steps)))


WEIGHTS: dict[str, Any] = {
    **speech.weights(POSITION),
    "~encoder.layers.{i}.attention.{q,k,v,out}_proj": f"{LAYER}.attention.op.{{q,k,v,o}}",
    "~encoder.layers.{i}.layer_norm": one_of(f"{LAYER}.attention.pre_norm", f"{LAYER}.attention.out_norm"),
    "~encoder.layers.{i}.feed_forward.{intermediate,output}_dense": f"{LAYER}.feedforward.op.{{up,down}}",
    "~encoder.layers.{i}.final_layer_norm": one_of(f"{LAYER}.feedforward.pre_norm", f"{LAYER}.feedforward.out_norm"),
    "~encoder.layers.{i}.adapter_layer.{norm,linear_1,linear_2}": f"{LAYER}.adapter.{{pre_norm,op.up,op.down}}",
    "~encoder.layer_norm": one_of("embedding.out_norm", "encoder.neck.norm", "encoder.neck.rest.part"),
}

LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "codevector_dim": 768,
    "proj_codevector_dim": 768,
}
STABLE = {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True}

WAV2VEC2 = Family(
    name="wav2vec2",
    about="speech encoders pretrained without labels, and speech recognition",
    tokenizer="Wav2Vec2CTCTokenizer",
    template=TEMPLATE,
    classes=speech.classes("Wav2Vec2"),
    config={
        **speech.CONFIG,
        "hidden_act": activation("encoder.layers.feedforward.op.activation"),
        "attention_dropout": "encoder.layers.attention.op.dropout",
        "hidden_dropout": ("embedding.dropout", "encoder.layers.*.dropout"),
        "layer_norm_eps": "**.eps",
        "feat_extract_activation": activation(f"{speech.STEM}.activation", f"{POSITION}.activation"),
        "vocab_size": "head.vocab_size",
        "num_conv_pos_embeddings": f"{POSITION}.kernel",
        "num_conv_pos_embedding_groups": f"{POSITION}.groups",
        "adapter_attn_dim": Entry(None, "encoder.layers.adapter.op.width"),
        "do_stable_layer_norm": Entry(False, lambda spec: spec.embedding.out_norm is None, build=norm_first),
    },
    computed={
        "encoder.neck": lambda c: speech.neck(c, LayerNorm(eps=c.layer_norm_eps) if c.do_stable_layer_norm else None),
        "head.features": lambda c: c.conv_dim[-1],
        "init": lambda c: speech.init(c, POSITION),
    },
    weights=WEIGHTS,
    prefix="wav2vec2.",
    checks=(speech.check,),
    legacy=speech.LEGACY,
    sizes={
        "wav2vec2-base": Size({}, 95e6),
        "wav2vec2-large": Size(LARGE, 317e6),
        "wav2vec2-large-stable": Size({**LARGE, **STABLE}, 317e6, "wav2vec2-large-lv60 and XLSR-53"),
    },
)
