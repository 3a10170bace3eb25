"""What T5 and Switch Transformers share: steps, positions, how weights start, and names of tensors."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.template import Config
from anyformer.parts.attention.attention import Attention
from anyformer.parts.init import Initializer, Normal, Value
from anyformer.parts.norm import RMSNorm
from anyformer.parts.op import Op
from anyformer.parts.position.absolute import BucketedBias
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer

READS_SOURCE = ("T5ForQuestionAnswering", "T5ForSequenceClassification")  # the decoder reads what the encoder does


def step(c: Config, op: Op) -> Sublayer:
    return Sublayer(pre_norm=RMSNorm(eps=c.layer_norm_epsilon), op=op, dropout=c.dropout_rate)


def attention(c: Config, **kind: Any) -> Sublayer:
    """Scores are not scaled: the start of the queries is 1 / sqrt(K) smaller."""
    rate = c.dropout_rate
    return step(c, Attention(num_heads=c.num_heads, head_width=c.d_kv, bias="", scale=1.0, dropout=rate, **kind))


def stack(c: Config, depth: int, both_ways: bool, **layers: Any) -> Stack:
    """One bias by the distance of two tokens, for all layers."""
    buckets, farthest = c.relative_attention_num_buckets, c.relative_attention_max_distance
    bias = BucketedBias(num_heads=c.num_heads, num_buckets=buckets, max_distance=farthest, both_ways=both_ways)
    norm = RMSNorm(eps=c.layer_norm_epsilon)
    return Stack(**layers, depth=depth, position=bias if depth else None, norm=norm, dropout=c.dropout_rate)


def init(c: Config) -> dict[str, Initializer]:
    """Every matrix by its own input width, the queries' smaller still."""

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
    """Default: as many as in the encoder. The alias does not count: with {"num_hidden_layers": 2} it is 6."""
    return c.unaliased.num_layers if c.num_decoder_layers is None else c.num_decoder_layers


def check_encoder_only(c: Config) -> None:
    """Where a published class hands its encoder the whole config, is_decoder gives it a cross-attention to nothing."""
    if c.is_decoder:
        raise ValueError(f"is_decoder=True is not supported with {c.architecture}: an encoder alone")


# all but the feed-forward layers
WEIGHTS = {
    ("~shared", "~encoder.embed_tokens"): "embedding.tokens",
    "~decoder.embed_tokens": "decoder_embedding.tokens",
    # published with the first layer, used by all
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
