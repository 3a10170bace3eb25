"""What the published forms of the original Transformer [Vaswani et al. 2017] share: names of tensors and of fields; the
pre-norm stack of the Conformer's decoder. BART has the template of the others."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.fields import ConfigField, Field, Ignored, activation_at
from anyformer.families.base.template import Config, activation, divides
from anyformer.families.shared.heads import causal, causal_mask, seen
from anyformer.models import Model
from anyformer.parts.activation import activation_named
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.norm import LayerNorm
from anyformer.runtime.mask import FULL
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer

STEP, TOKENS = "decoder.layers", "embedding.tokens.weight"


def target(spec: Model) -> TextEmbedding:
    """What the decoder reads with, whether there is an encoder or not."""
    return getattr(spec, spec.target)


FIELDS: dict[str, ConfigField] = {
    "d_model": Field(1024, "width"),
    "encoder_layers": Field(12, "encoder.depth"),
    "encoder_ffn_dim": Field(4096, "encoder.layers.feedforward.op.width"),
    "encoder_attention_heads": Field(16, "encoder.layers.attention.op.num_heads"),
    "encoder_layerdrop": Field(0.0, "encoder.layer_drop"),
    "decoder_layers": Field(12, "decoder.depth"),
    "decoder_ffn_dim": Field(4096, f"{STEP}.feedforward.op.width"),
    "decoder_attention_heads": Field(16, f"{STEP}.attention.op.num_heads"),
    "decoder_layerdrop": Field(0.0, "decoder.layer_drop"),
    "dropout": Field(0.1, "embedding.dropout"),
    "attention_dropout": Field(0.0, f"{STEP}.attention.op.dropout"),
    "activation_dropout": Field(0.0, f"{STEP}.feedforward.op.dropout"),
    "activation_function": Field("gelu", activation_at(f"{STEP}.feedforward.op.activation")),
    "init_std": Field(0.02, lambda spec: spec.init["*"].std),
    "is_causal": causal(f"{STEP}.attention.op.mask"),
    "is_encoder_decoder": Ignored(True, "follows from the class"),
}
CONFIG: dict[str, Any] = {
    "d_model": "width",
    "encoder_layers": "encoder.depth",
    "encoder_ffn_dim": "encoder.layers.feedforward.op.width",
    "encoder_attention_heads": "encoder.layers.*.op.num_heads",
    "encoder_layerdrop": "encoder.layer_drop",
    "decoder_layers": "decoder.depth",
    "decoder_ffn_dim": "decoder.layers.feedforward.op.width",
    "decoder_attention_heads": "decoder.layers.*.op.num_heads",
    "decoder_layerdrop": "decoder.layer_drop",
    "dropout": ("embedding.dropout", "decoder_embedding.dropout", "*.layers.*.dropout"),
    "attention_dropout": "*.layers.*.op[Attention].dropout",
    "activation_dropout": "*.layers.feedforward.op.dropout",
    "activation_function": activation("*.layers.feedforward.op.activation"),
    "init_std": "init.*.std",
    "is_causal": causal_mask("decoder.layers.attention.op.mask"),
    "is_encoder_decoder": Ignored(True, "follows from the class"),
}
ALIASES = {
    "num_attention_heads": "encoder_attention_heads",
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
}


def stack(c: Config, side: str, bias: str = "qkvo") -> Stack:
    """The encoder or the decoder of a config, with norms before each step and at the end."""
    norm, heads = LayerNorm(), getattr(c, f"{side}_attention_heads")
    divides(f"{side}_attention_heads", "d_model")(c)

    def step(op: Any) -> Sublayer:
        return Sublayer(pre_norm=norm, op=op, dropout=c.dropout)

    def attention(**kind: Any) -> Sublayer:
        return step(Attention(num_heads=heads, bias=bias, dropout=c.attention_dropout, **kind))

    steps = {"attention": attention(mask=seen(c) if side == "decoder" else FULL)}
    if side == "decoder":
        steps["cross"] = attention(memory=True)
    activation, inner = activation_named(c.activation_function), getattr(c, f"{side}_ffn_dim")
    steps["feedforward"] = step(MLP(width=inner, activation=activation, dropout=c.activation_dropout))
    depth, drop = getattr(c, f"{side}_layers"), getattr(c, f"{side}_layerdrop")
    return Stack(layers=Block(**steps), depth=depth, norm=norm, layer_drop=drop)


def check_padding(c: Config, *vocab_sizes: int) -> None:
    """A token of each vocabulary, or none; files that have none say -1 too, which in a table is its last row."""
    if c.pad_token_id is not None and not -1 <= c.pad_token_id < min(vocab_sizes):
        raise ValueError(f"pad_token_id {c.pad_token_id} is outside a vocabulary of {min(vocab_sizes)}")


def weights(norm: str) -> dict[str, str]:
    """What files call embeddings and layers of a pair, whose steps have their norm at `norm`."""
    theirs, ours = "~{encoder,decoder}.layers.{i}", "{encoder,decoder}.layers.{i}"
    return {
        "~{encoder,decoder}.embed_{tokens,positions}": "{embedding,decoder_embedding}.{tokens,position}",
        f"{theirs}.self_attn.{{q,k,v,out}}_proj": f"{ours}.attention.op.{{q,k,v,o}}",
        f"{theirs}.self_attn_layer_norm": f"{ours}.attention.{norm}",
        "~decoder.layers.{i}.encoder_attn.{q,k,v,out}_proj": "decoder.layers.{i}.cross.op.{q,k,v,o}",
        "~decoder.layers.{i}.encoder_attn_layer_norm": f"decoder.layers.{{i}}.cross.{norm}",
        f"{theirs}.{{fc1,fc2,final_layer_norm}}": f"{ours}.feedforward.{{op.up,op.down,{norm}}}",
        "~{encoder,decoder}.layer_norm": "{encoder,decoder}.norm",
    }
