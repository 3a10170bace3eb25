"""Llama [Touvron et al. 2023; Llama 3, 2024]: pre-norm decoder, RMSNorm, SwiGLU, rotary positions, grouped queries."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import ConfigField, Family, Field, Inert, Size, activation_at, tied
from anyformer.families.shared.heads import TAGGING, causal, decoder_model, seen
from anyformer.families.shared.rope import ROPE, read_rope, write_rope
from anyformer.models import Model
from anyformer.parts.activation import activation_named
from anyformer.parts.attention.attention import Attention
from anyformer.parts.feedforward.mlp import GatedMLP
from anyformer.parts.head.language import LMHead
from anyformer.parts.norm import RMSNorm
from anyformer.specs.part import at
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rename, Rule

ATTENTION, MLP = "decoder.layers.attention.op", "decoder.layers.feedforward.op"

FIELDS: dict[str, ConfigField] = {
    "vocab_size": Field(32000, "embedding.tokens.vocab_size"),
    "hidden_size": Field(4096, "width"),
    "intermediate_size": Field(11008, f"{MLP}.width"),
    "num_hidden_layers": Field(32, "decoder.depth"),
    "num_attention_heads": Field(32, f"{ATTENTION}.num_heads"),
    "num_key_value_heads": Field(None, f"{ATTENTION}.num_kv_heads"),
    "head_dim": Field(None, f"{ATTENTION}.head_width"),
    "hidden_act": Field("silu", activation_at(f"{MLP}.activation")),
    "initializer_range": Field(0.02, lambda spec: spec.init["*"].std),
    "rms_norm_eps": Field(1e-6, "decoder.norm.eps"),
    "rope_parameters": Field(None, lambda spec: write_rope(at(spec, f"{ATTENTION}.position")), within=ROPE),
    "rope_theta": Field(None),
    "rope_scaling": Field(None, within=ROPE),
    "original_max_position_embeddings": Field(None),
    "max_position_embeddings": Field(2048, "length"),
    "attention_bias": Field(False, lambda spec: spec.decoder.layers.steps["attention"].op.bias == "qkvo"),
    "attention_dropout": Field(0.0, f"{ATTENTION}.dropout"),
    "mlp_bias": Field(False, f"{MLP}.bias"),
    "tie_word_embeddings": Field(False, tied(LMHead)),
    "pad_token_id": Field(None, "embedding.tokens.padding_index"),
    "problem_type": Field(None, "head.problem"),
    **TAGGING,
    "is_causal": causal(f"{ATTENTION}.mask"),
    "bos_token_id": Inert(1, "used by generation"),
    "eos_token_id": Inert(2, "used by generation"),
    "pretraining_tp": Inert(1, "splits the same sums over devices"),
}


def describe(c: Any) -> Model:
    if c.hidden_size % c.num_attention_heads:
        raise ValueError(f"hidden_size {c.hidden_size} is not a multiple of {c.num_attention_heads} attention heads")
    norm = RMSNorm(eps=c.rms_norm_eps)
    attention = Attention(
        num_heads=c.num_attention_heads,
        num_kv_heads=c.num_key_value_heads or c.num_attention_heads,
        head_width=c.head_dim or c.hidden_size // c.num_attention_heads,
        bias="qkvo" if c.attention_bias else "",
        mask=seen(c),
        position=read_rope(c),
        dropout=c.attention_dropout,
    )
    mlp = GatedMLP(width=c.intermediate_size, activation=activation_named(c.hidden_act), bias=c.mlp_bias)
    layers = Block(attention=Sublayer(pre_norm=norm, op=attention), feedforward=Sublayer(pre_norm=norm, op=mlp))
    stack = Stack(layers=layers, depth=c.num_hidden_layers, norm=norm)
    return decoder_model(c, stack, length=c.max_position_embeddings)


def rules(spec: Model) -> list[Rule]:
    layer, ours = "~layers.{i}", "decoder.layers.{i}"
    heads = {"LlamaForCausalLM": "lm_head", "LlamaForQuestionAnswering": "qa_outputs"}
    out = heads.get(spec.architecture, "score")
    return [
        Rename("~embed_tokens.weight", "embedding.tokens.weight"),
        Rename(f"{layer}.input_layernorm.weight", f"{ours}.attention.pre_norm.weight"),
        *[Rename(f"{layer}.self_attn.{n}_proj.{{p}}", f"{ours}.attention.op.{n}.{{p}}") for n in "qkvo"],
        Rename(f"{layer}.post_attention_layernorm.weight", f"{ours}.feedforward.pre_norm.weight"),
        *[Rename(f"{layer}.mlp.{n}_proj.{{p}}", f"{ours}.feedforward.op.{n}.{{p}}") for n in ("gate", "up", "down")],
        Rename("~norm.weight", "decoder.norm.weight"),
        Rename(f"{out}.{{p}}", "head.out.{p}"),
    ]


def size(width: int, inner: int, depth: int, heads: int, published: float, **more: Any) -> Size:
    config = {
        "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": depth, "num_attention_heads": heads,
        "num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, **more,
    }  # fmt: skip
    return Size(config, published)


def llama3_rope(factor: float) -> dict[str, Any]:
    return {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": factor, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip


FAMILIES = (
    Family(
        name="llama",
        about="decoder language models",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            "LlamaForCausalLM", "LlamaModel", "LlamaForSequenceClassification", "LlamaForTokenClassification",
            "LlamaForQuestionAnswering",
        ),
        base=("LlamaModel",),
        prefix="model.",
        prefixes={"LlamaForQuestionAnswering": "transformer."},
        dropped=("~layers.{i}.self_attn.rotary_emb.inv_freq", "~rotary_emb.inv_freq"),
        sizes={
            "llama3-8b": size(
                4096, 14336, 32, 32, 8e9, max_position_embeddings=8192, rope_parameters={"rope_theta": 500000.0}
            ),
            "llama3.2-1b": size(
                2048, 8192, 16, 32, 1.23e9, tie_word_embeddings=True, rope_parameters=llama3_rope(32.0)
            ),
            "llama3.1-405b": size(16384, 53248, 126, 128, 405e9, rope_parameters=llama3_rope(8.0)),
        },
    ),
)  # fmt: skip
