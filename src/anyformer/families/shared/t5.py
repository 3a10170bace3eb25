"""Sublayers, positions, initialisers and tensor names that T5 and Switch Transformers share."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.template import Config
from anyformer.parts import Attention, Initializer, Normal, Op, RMSNorm, Stack, Sublayer, Value
from anyformer.parts.position.absolute import BucketedBias

READS_SOURCE = ("T5ForQuestionAnswering", "T5ForSequenceClassification")  # the decoder reads the encoder's input


def step(c: Config, op: Op) -> Sublayer:
    return Sublayer(pre_norm=RMSNorm(eps=c.layer_norm_epsilon), op=op, dropout=c.dropout_rate)


def attention(c: Config, **kind: Any) -> Sublayer:
    """Scores are not scaled; instead, queries are initialised 1 / sqrt(K) smaller."""
    rate = c.dropout_rate
    return step(c, Attention(num_heads=c.num_heads, head_width=c.d_kv, bias="", scale=1.0, dropout=rate, **kind))


def stack(c: Config, depth: int, both_ways: bool, **layers: Any) -> Stack:
    """Return a stack whose layers share one relative-position bias."""
    buckets, farthest = c.relative_attention_num_buckets, c.relative_attention_max_distance
    bias = BucketedBias(num_heads=c.num_heads, num_buckets=buckets, max_distance=farthest, both_ways=both_ways)
    norm = RMSNorm(eps=c.layer_norm_epsilon)
    return Stack(**layers, depth=depth, position=bias if depth else None, norm=norm, dropout=c.dropout_rate)


def init(c: Config) -> dict[str, Initializer]:
    """Return initialisers: std 1 / sqrt(input width); queries are smaller by 1 / sqrt(K)."""

    def normal(width: int) -> Normal:
        return Normal(std=c.initializer_factor * width**-0.5)

    return {
        "*norm.weight": Value(value=c.initializer_factor),
        "*tokens.weight": normal(1),
        "*.q.weight": normal(c.d_model * c.d_kv),
        "*.o.weight": normal(c.num_heads * c.d_kv),
        "*.down.weight": normal(c.d_ff),
        "head.out.weight": normal(c.d_model if c.architecture in READS_SOURCE else 1),
        "*": normal(c.d_model),
    }


def decoder_depth(c: Config) -> int:
    """The default is num_layers without aliases: with {"num_hidden_layers": 2} it is still 6."""
    return c.unaliased.num_layers if c.num_decoder_layers is None else c.num_decoder_layers


def check_encoder_only(c: Config) -> None:
    """Refuse is_decoder: it would give the encoder of the published class a cross-attention without a source."""
    if c.is_decoder:
        raise ValueError(f"is_decoder=True is not supported with {c.architecture}, which is only an encoder")


# all tensors except the feed-forward layers
WEIGHTS = {
    ("~shared", "~encoder.embed_tokens"): "embedding.tokens",
    "~decoder.embed_tokens": "decoder_embedding.tokens",
    # stored with the first layer, used by all layers
    "~{encoder,decoder}.block.0.layer.0.SelfAttention.relative_attention_bias": "{encoder,decoder}.position.table",
    "~{encoder,decoder}.block.{i}.layer.0.layer_norm": "{encoder,decoder}.layers.{i}.attention.pre_norm",
    "~encoder.block.{i}.layer.0.SelfAttention.{q,k,v,o}": "encoder.layers.{i}.attention.op.{q,k,v,o}",
    "~decoder.block.{i}.layer.0.SelfAttention.{q,k,v,o}": "decoder.layers.{i}.attention.op.{q,k,v,o}",
    "~decoder.block.{i}.layer.1.layer_norm": "decoder.layers.{i}.cross.pre_norm",
    "~decoder.block.{i}.layer.1.EncDecAttention.{q,k,v,o}": "decoder.layers.{i}.cross.op.{q,k,v,o}",
    "~encoder.block.{i}.layer.1.layer_norm": "encoder.layers.{i}.feedforward.pre_norm",
    "~decoder.block.{i}.layer.2.layer_norm": "decoder.layers.{i}.feedforward.pre_norm",
    "~{encoder,decoder}.final_layer_norm": "{encoder,decoder}.norm",
}
