"""DeBERTa v2 and v3 [He et al. 2021, 2023]: long distances share vectors in buckets, relative positions may use the
projections of the tokens, and the first layer may have a parallel convolution."""

from __future__ import annotations

from typing import Any

from anyformer.families import deberta
from anyformer.families.base.family import Size
from anyformer.families.base.template import Class, Config, Entry, read_only
from anyformer.families.deberta import DEBERTA, LM, OURS, POOL, THEIRS
from anyformer.families.shared.deberta import (
    ATTENTION,
    POSITION,
    distance_field,
    distances,
    distances_of,
    omit_default,
    relative_attention,
    scale,
    score_terms,
)
from anyformer.parts import (
    Block, BlockInputStep, Disentangled, EncoderModel, LayerNorm, MultipleChoiceHead, TokenConvolution,
)  # fmt: skip
from anyformer.parts.activation import activation_named, published_name
from anyformer.specs.addresses import edit, value_at

CONVOLUTION = "encoder.layers.0.convolution"


def distances_v2(c: Config) -> Disentangled | None:
    words = [word.strip() for word in c.norm_rel_ebd.lower().split("|")]
    norm = LayerNorm(eps=c.layer_norm_eps) if "layer_norm" in words else None
    buckets = c.position_buckets if c.position_buckets > 0 else None
    position = distances(c, buckets=buckets, own=not c.share_att_key, norm=norm)
    if position is None and norm is not None:  # files contain an unused norm
        return Disentangled(num_heads=c.num_attention_heads, reach=0, norm=norm)
    return position


def norm_rel_ebd(spec: EncoderModel) -> str:
    position = distances_of(spec)
    return "layer_norm" if position is not None and position.norm is not None else "none"


def add_convolution(spec: EncoderModel, kernel: int, c: Config) -> EncoderModel:
    """Add a convolution of the first layer's input to its output."""
    if kernel <= 0:
        return spec
    if kernel % 2 == 0:
        raise ValueError(f"conv_kernel_size must be odd, so that the number of tokens stays the same; got {kernel}")
    op = TokenConvolution(
        kernel=kernel,
        groups=c.conv_groups,
        activation=activation_named(c.conv_act),
        dropout=c.hidden_dropout_prob,
    )
    step = BlockInputStep(op=op, out_norm=LayerNorm(eps=c.layer_norm_eps))
    stack = value_at(spec, "encoder")
    layer, rest = stack.layers, ("layer",) * (c.num_hidden_layers - 1)
    layers = {"first": Block(**layer.steps, convolution=step), **({"layer": layer} if rest else {})}
    return spec.replace(encoder=stack.replace(layers=layers, pattern=("first", *rest)))


def check_heads(c: Config) -> None:
    if (width := c.attention_head_size) is not None and width * c.num_attention_heads != c.hidden_size:
        raise ValueError(
            f"attention_head_size {width} x {c.num_attention_heads} heads is not hidden_size {c.hidden_size}"
        )


def size(width: int, depth: int, heads: int, published: float, **more: Any) -> Size:
    shared = {"position_buckets": 256, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
    return deberta.size(width, depth, heads, published, **shared, **more)


CONVOLVED = {"conv_kernel_size": 3, "conv_act": "gelu"}

DEBERTA_V2 = DEBERTA.but(
    "deberta-v2",
    about="DeBERTa v2 and v3: relative positions in buckets",
    tokenizer="DebertaV2Tokenizer",
    changes={
        "width": 1536,
        "embedding.tokens.vocab_size": 128100,
        "encoder.depth": 24,
        f"{ATTENTION}.num_heads": 24,
        f"{ATTENTION}.bias": "qkvo",
        "encoder.layers.feedforward.op.width": 6144,
    },
    classes={
        **deberta.classes("DebertaV2", edit(LM, {"vocab_size": 128100, "transform.width": 1536})),
        "DebertaV2ForMultipleChoice": Class(MultipleChoiceHead(pool=POOL), "classifier"),
    },
    config={
        "relative_attention": relative_attention(distances_v2),
        "talking_head": None,
        "attention_head_size": read_only(),
        "position_buckets": omit_default(distance_field(-1, lambda position: position.buckets or -1)),
        "share_att_key": omit_default(distance_field(False, lambda position: not position.own)),
        "norm_rel_ebd": omit_default(Entry("none", norm_rel_ebd)),
        "conv_kernel_size": Entry(0, f"{CONVOLUTION}.op.kernel", build=add_convolution),
        "conv_groups": omit_default(Entry(1, f"{CONVOLUTION}.op.groups")),
        "conv_act": omit_default(
            Entry("tanh", lambda spec: published_name(value_at(spec, f"{CONVOLUTION}.op.activation")))
        ),
    },
    computed={
        **deberta.COMPUTED,
        f"{ATTENTION}.scale": lambda c: scale(c, 1 + len({"c2p", "p2c"} & {*score_terms(c)})),
    },
    weights={
        f"{THEIRS}.{{query,key,value}}_proj": f"{OURS}.{{q,k,v}}",
        f"{THEIRS}.pos_{{key,query}}_proj": f"{OURS}.position.{{k,q}}",
        "~encoder.LayerNorm": f"{POSITION}.norm",
        "~encoder.conv.{conv,LayerNorm}": f"{CONVOLUTION}.{{op.taps,out_norm}}",
        f"{THEIRS}.{{q,v}}_bias": None,
        f"{THEIRS}.in_proj": None,
    },
    checks=(check_heads, *DEBERTA.checks),
    sizes={
        "deberta-v2-xlarge": size(1536, 24, 24, 900e6, **CONVOLVED),
        "deberta-v2-xxlarge": size(1536, 48, 24, 1.5e9, **CONVOLVED),
        "deberta-v3-xsmall": size(384, 12, 6, 70e6),
        "deberta-v3-small": size(768, 6, 12, 141e6),
        "deberta-v3-base": size(768, 12, 12, 184e6),
        "deberta-v3-large": size(1024, 24, 16, 435e6),
    },
)
