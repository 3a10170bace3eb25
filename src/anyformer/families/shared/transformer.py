"""What the published forms of the original Transformer [Vaswani et al. 2017] share: fields, post-norm stacks, names."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.fields import ConfigField, Field, Ignored, activation_at
from anyformer.families.shared.heads import causal, seen
from anyformer.parts.activation import activation_named
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.norm import LayerNorm
from anyformer.runtime.mask import FULL
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Copies, Rename, Rule, Unwritten

STEP, TOKENS = "decoder.layers", "embedding.tokens.weight"


def target(spec: Any) -> TextEmbedding:
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
    "max_position_embeddings": Field(1024, "embedding.position.length"),
    "dropout": Field(0.1, "embedding.dropout"),
    "attention_dropout": Field(0.0, f"{STEP}.attention.op.dropout"),
    "activation_dropout": Field(0.0, f"{STEP}.feedforward.op.dropout"),
    "activation_function": Field("gelu", activation_at(f"{STEP}.feedforward.op.activation")),
    "init_std": Field(0.02, lambda spec: spec.init["*"].std),
    "scale_embedding": Field(False, lambda spec: target(spec).scale is not None),
    "is_causal": causal(f"{STEP}.attention.op.mask"),
    "is_encoder_decoder": Ignored(True, "follows from the class"),
}
ALIASES = {
    "num_attention_heads": "encoder_attention_heads", "hidden_size": "d_model", "num_hidden_layers": "encoder_layers",
}  # fmt: skip


def stack(c: Any, side: str, pre_norm: bool = False, bias: str = "qkvo") -> Stack:
    """The encoder or the decoder of a config, its norms after each add, or before each step and once at the end."""
    norm, heads = LayerNorm(), getattr(c, f"{side}_attention_heads")
    if c.d_model % heads:
        raise ValueError(f"d_model {c.d_model} is not a multiple of {side}_attention_heads {heads}")

    def step(op: Any) -> Sublayer:
        place: dict[str, Any] = {"pre_norm" if pre_norm else "out_norm": norm}
        return Sublayer(op=op, dropout=c.dropout, **place)

    def attention(**kind: Any) -> Sublayer:
        return step(Attention(num_heads=heads, bias=bias, dropout=c.attention_dropout, **kind))

    steps = {"attention": attention(mask=seen(c) if side == "decoder" else FULL)}
    if side == "decoder":
        steps["cross"] = attention(memory=True)
    activation, inner = activation_named(c.activation_function), getattr(c, f"{side}_ffn_dim")
    steps["feedforward"] = step(MLP(width=inner, activation=activation, dropout=c.activation_dropout))
    depth, drop = getattr(c, f"{side}_layers"), getattr(c, f"{side}_layerdrop")
    return Stack(layers=Block(**steps), depth=depth, norm=norm if pre_norm else None, layer_drop=drop)


def check_padding(c: Any, *vocab_sizes: int) -> None:
    """A token of each vocabulary, or none; files that have none say -1 too, which in a table is its last row."""
    if c.pad_token_id is not None and not -1 <= c.pad_token_id < min(vocab_sizes):
        raise ValueError(f"pad_token_id {c.pad_token_id} is outside a vocabulary of {min(vocab_sizes)}")


def rules(spec: Any) -> list[Rule]:
    """Embeddings, positions and layers; heads are named by each family."""
    alone = not hasattr(spec, "encoder")
    last = getattr(spec, "decoder", None) or spec.encoder
    norm = "out_norm" if last.norm is None else "pre_norm"
    # MarianMTModel leaves its position tables out of what it saves
    position = Unwritten if spec.architecture == "MarianMTModel" else Rename
    found: list[Rule] = []
    if not alone and any(owner == TOKENS for _, owner in spec.ties):
        found.append(Copies(["~shared.weight", "~encoder.embed_tokens.weight"], TOKENS))
    for side in ("encoder", "decoder"):
        layer, ours = f"~{side}.layers.{{i}}", f"{side}.layers.{{i}}"
        if side == "decoder" or not alone:
            embedding = spec.target if side == "decoder" else "embedding"
            found.append(Rename(f"~{side}.embed_tokens.weight", f"{embedding}.tokens.weight"))
            found.append(position(f"~{side}.embed_positions.weight", f"{embedding}.position.weight"))
        for theirs, step in (("self_attn", "attention"), ("encoder_attn", "cross")):
            found.append(Rename(f"{layer}.{theirs}_layer_norm.{{p}}", f"{ours}.{step}.{norm}.{{p}}"))
            found += [Rename(f"{layer}.{theirs}.{n}_proj.{{p}}", f"{ours}.{step}.op.{n}.{{p}}") for n in "qkv"]
            found.append(Rename(f"{layer}.{theirs}.out_proj.{{p}}", f"{ours}.{step}.op.o.{{p}}"))
        for theirs, name in (("fc1", "op.up"), ("fc2", "op.down"), ("final_layer_norm", norm)):
            found.append(Rename(f"{layer}.{theirs}.{{p}}", f"{ours}.feedforward.{name}.{{p}}"))
        found.append(Rename(f"~{side}.layer_norm.{{p}}", f"{side}.norm.{{p}}"))
    return found


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
