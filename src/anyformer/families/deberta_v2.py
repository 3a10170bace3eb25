"""DeBERTa v2 and v3 [He et al. 2021, 2023]: far distances share vectors, which may go through the projections of the
tokens, and the first layer may have a convolution beside it."""

from __future__ import annotations

from typing import Any

from anyformer.families import deberta
from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, activation_at, again
from anyformer.families.deberta import FIRST, OURS, POSITION, THEIRS, asked, of_distances, undeclared
from anyformer.families.shared import encoder
from anyformer.models import Model
from anyformer.parts.activation import activation_named
from anyformer.parts.convolution.tokens import TokenConvolution
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.disentangled import Disentangled
from anyformer.specs.addresses import at
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rule

CONVOLUTION = f"{FIRST}.convolution"


def normed(spec: Model) -> str:
    return "layer_norm" if getattr(at(spec, POSITION), "norm", None) else "none"


FIELDS: dict[str, ConfigField] = {
    **deberta.FIELDS,
    **again(
        deberta.FIELDS,
        vocab_size=128100,
        hidden_size=1536,
        num_hidden_layers=24,
        num_attention_heads=24,
        intermediate_size=6144,
    ),
    "attention_head_size": Field(None),  # hidden_size / num_attention_heads, or the heads do not fit
    "position_buckets": undeclared(-1, of_distances(lambda position: position.buckets or -1)),
    "share_att_key": undeclared(False, of_distances(lambda position: not position.own)),
    "norm_rel_ebd": undeclared("none", normed),
    "conv_kernel_size": Field(0, f"{CONVOLUTION}.op.kernel"),
    "conv_groups": undeclared(1, f"{CONVOLUTION}.op.groups"),
    "conv_act": undeclared("tanh", activation_at(f"{CONVOLUTION}.op.activation")),
}


def describe(c: Any) -> Model:
    if (width := c.attention_head_size) is not None and width * c.num_attention_heads != c.hidden_size:
        line = f"{c.num_attention_heads} heads are as wide together as hidden_size, {c.hidden_size}"
        raise ValueError(f"attention_head_size {width}: {line}")
    op = deberta.attention(c, 1 + len({"c2p", "p2c"} & {*asked(c)}), distances(c))
    layer = encoder.block(c, op)
    stack = Stack(layers=layer, depth=c.num_hidden_layers)
    if c.conv_kernel_size > 0 and c.num_hidden_layers > 0:
        rest = ("layer",) * (c.num_hidden_layers - 1)
        layers = {"first": Block(**layer.steps, convolution=convolution(c)), **({"layer": layer} if rest else {})}
        stack = Stack(layers=layers, pattern=("first", *rest), depth=c.num_hidden_layers)
    return deberta.model(c, stack)


def distances(c: Any) -> Disentangled | None:
    words = [word.strip() for word in c.norm_rel_ebd.lower().split("|")]
    norm = LayerNorm(eps=c.layer_norm_eps) if "layer_norm" in words else None
    buckets = c.position_buckets if c.position_buckets > 0 else None
    found = deberta.distances(c, buckets=buckets, own=not c.share_att_key, norm=norm)
    if found is None and norm is not None:  # files have it, and nothing to norm
        return Disentangled(num_heads=c.num_attention_heads, reach=0, norm=norm)
    return found


def convolution(c: Any) -> Sublayer:
    """Of what came into the first layer, added to what leaves it."""
    if c.conv_kernel_size % 2 == 0:
        raise ValueError(f"conv_kernel_size {c.conv_kernel_size} is even, and would leave one token less")
    op = TokenConvolution(
        kernel=c.conv_kernel_size,
        groups=c.conv_groups,
        activation=activation_named(c.conv_act),
        dropout=c.hidden_dropout_prob,
    )
    return Sublayer(op=op, out_norm=LayerNorm(eps=c.layer_norm_eps), of_block=True, zero_pads=True)


def rules(spec: Model) -> list[Rule]:
    return encoder.renames(
        {
            f"{THEIRS}.query_proj": f"{OURS}.q",
            f"{THEIRS}.key_proj": f"{OURS}.k",
            f"{THEIRS}.value_proj": f"{OURS}.v",
            f"{THEIRS}.pos_key_proj": f"{OURS}.position.k",
            f"{THEIRS}.pos_query_proj": f"{OURS}.position.q",
            "~encoder.LayerNorm": f"{POSITION}.norm",
            "~encoder.conv.conv": f"{CONVOLUTION}.op.taps",
            "~encoder.conv.LayerNorm": f"{CONVOLUTION}.out_norm",
        }
    ) + deberta.shared_rules(spec)


def size(width: int, depth: int, heads: int, published: float, **more: Any) -> Size:
    shared = {"position_buckets": 256, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
    return deberta.size(width, depth, heads, published, **shared, **more)


CONVOLVED = {"conv_kernel_size": 3, "conv_act": "gelu"}

FAMILIES = (
    Family(
        name="deberta-v2",
        about="encoders for text that compare contents and distances apart, far ones in groups (DeBERTa v2 and v3)",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            "DebertaV2ForMaskedLM",
            "DebertaV2Model",
            "DebertaV2ForSequenceClassification",
            "DebertaV2ForTokenClassification",
            "DebertaV2ForQuestionAnswering",
            "DebertaV2ForMultipleChoice",
        ),
        base=("DebertaV2Model",),
        prefix="deberta.",
        dropped=deberta.DROPPED,
        absent=deberta.TOLD,
        sizes={
            "deberta-v2-xlarge": size(1536, 24, 24, 900e6, **CONVOLVED),
            "deberta-v2-xxlarge": size(1536, 48, 24, 1.5e9, **CONVOLVED),
            "deberta-v3-xsmall": size(384, 12, 6, 70e6),
            "deberta-v3-small": size(768, 6, 12, 141e6),
            "deberta-v3-base": size(768, 12, 12, 184e6),
            "deberta-v3-large": size(1024, 24, 16, 435e6),
        },
    ),
)
