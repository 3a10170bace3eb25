"""Config fields and tensor names that the published forms of the original Transformer [Vaswani et al. 2017] share. The
template is in bart.py."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import Config, activation
from anyformer.families.shared.heads import causal_mask
from anyformer.parts import Model, TextEmbedding

TOKENS = "embedding.tokens.weight"


def target(spec: Model) -> TextEmbedding:
    """Return the decoder's embedding, with or without an encoder."""
    return getattr(spec, spec.target)


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


def check_padding(c: Config, *vocab_sizes: int) -> None:
    """Check that pad_token_id is in every vocabulary, or None or -1 (files also use -1: the last row of a table)."""
    if c.pad_token_id is not None and not -1 <= c.pad_token_id < min(vocab_sizes):
        raise ValueError(f"pad_token_id {c.pad_token_id} is outside the vocabulary of {min(vocab_sizes)} tokens")


def weights(norm: str) -> dict[str, str]:
    """Return the tensor names of an encoder-decoder whose steps have their norm at `norm` (pre_norm or out_norm)."""
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
