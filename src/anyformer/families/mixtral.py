"""Mixtral [Jiang et al. 2024]: Mistral's decoder with eight experts for each feed-forward layer, two a token."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import ConfigField, Family, Field, Inert, Size, activation_at, tied
from anyformer.families.shared.heads import TAGGING, causal, decoder_head, decoder_model, seen
from anyformer.families.shared.rope import ROPE, read_rope, write_rope
from anyformer.models import Model
from anyformer.parts.activation import activation_named
from anyformer.parts.attention.attention import Attention
from anyformer.parts.feedforward.balance import PooledBalance
from anyformer.parts.feedforward.mlp import GatedMLP
from anyformer.parts.feedforward.moe import MoE, TopK
from anyformer.parts.head.language import LMHead
from anyformer.parts.norm import RMSNorm
from anyformer.runtime.mask import All, Causal, Mask, Window
from anyformer.specs.part import at
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rename, Rule
from anyformer.weights.rules import Stack as StackRule

ATTENTION, EXPERTS = "decoder.layers.attention.op", "decoder.layers.feedforward.op"

FIELDS: dict[str, ConfigField] = {
    "vocab_size": Field(32000, "embedding.tokens.vocab_size"),
    "hidden_size": Field(4096, "width"),
    "intermediate_size": Field(14336, f"{EXPERTS}.expert.width"),
    "num_hidden_layers": Field(32, "decoder.depth"),
    "num_attention_heads": Field(32, f"{ATTENTION}.num_heads"),
    "num_key_value_heads": Field(8, f"{ATTENTION}.num_kv_heads"),
    "head_dim": Field(None, f"{ATTENTION}.head_width"),
    "hidden_act": Field("silu", activation_at(f"{EXPERTS}.expert.activation")),
    "max_position_embeddings": Field(131072, "length"),
    "initializer_range": Field(0.02, lambda spec: spec.init["*"].std),
    "rms_norm_eps": Field(1e-5, "decoder.norm.eps"),
    "rope_parameters": Field(None, lambda spec: write_rope(at(spec, f"{ATTENTION}.position")), within=ROPE),
    "rope_theta": Field(1e6),
    "rope_scaling": Field(None, within=ROPE),
    "original_max_position_embeddings": Field(None),
    "sliding_window": Field(None, lambda spec: window(at(spec, f"{ATTENTION}.mask"))),
    "attention_dropout": Field(0.0, f"{ATTENTION}.dropout"),
    "num_experts_per_tok": Field(2, f"{EXPERTS}.router.top_k"),
    "num_local_experts": Field(8, f"{EXPERTS}.num_experts"),
    "router_aux_loss_coef": Field(0.001, "head.balance.weight"),
    "router_jitter_noise": Field(0.0, f"{EXPERTS}.jitter"),
    "tie_word_embeddings": Field(False, tied(LMHead)),
    "pad_token_id": Field(None, "embedding.tokens.padding_index"),
    "problem_type": Field(None, "head.problem"),
    **TAGGING,
    "is_causal": causal(f"{ATTENTION}.mask"),
    "output_router_logits": Inert(False, "which outputs are returned by default; honoured by forward"),
    "bos_token_id": Inert(1, "used by generation"),
    "eos_token_id": Inert(2, "used by generation"),
}


def window(mask: Mask) -> int | None:
    if isinstance(mask, Window):
        return mask.size - 1
    return next((each.size for each in mask.masks if isinstance(each, Window)), None) if isinstance(mask, All) else None


def mask(c: Any) -> Mask:
    size = c.sliding_window
    if size is None or c.is_causal:
        return seen(c) if size is None else Causal() & Window(size=size)
    return Window(size=size + 1, ahead=True)  # published: to both sides, a window does not count the query itself


def describe(c: Any) -> Model:
    heads = c.num_attention_heads
    if c.head_dim is None and c.hidden_size % heads:
        raise ValueError(f"hidden_size {c.hidden_size} is not a multiple of {heads} attention heads")
    norm = RMSNorm(eps=c.rms_norm_eps)
    attention = Attention(
        num_heads=heads,
        num_kv_heads=heads if c.num_key_value_heads is None else c.num_key_value_heads,
        head_width=c.head_dim or c.hidden_size // heads,
        bias="",
        mask=mask(c),
        position=read_rope(c),
        dropout=c.attention_dropout,
    )
    experts = MoE(
        num_experts=c.num_local_experts,
        router=TopK(top_k=c.num_experts_per_tok),
        expert=GatedMLP(width=c.intermediate_size, activation=activation_named(c.hidden_act)),
        jitter=c.router_jitter_noise,
    )
    head = decoder_head(c)
    if isinstance(head, LMHead):
        head = head.replace(balance=PooledBalance(weight=c.router_aux_loss_coef, top_k=c.num_experts_per_tok))
    layers = Block(attention=Sublayer(pre_norm=norm, op=attention), feedforward=Sublayer(pre_norm=norm, op=experts))
    stack = Stack(layers=layers, depth=c.num_hidden_layers, norm=norm)
    return decoder_model(c, stack, head=head, length=c.max_position_embeddings)


def rules(spec: Model) -> list[Rule]:
    layer, ours = "~layers.{i}", "decoder.layers.{i}"
    heads = {"MixtralForCausalLM": "lm_head", "MixtralForQuestionAnswering": "qa_outputs"}
    expert, count = f"{layer}.block_sparse_moe.experts.{{e}}", at(spec, f"{EXPERTS}.num_experts")
    return [
        Rename("~embed_tokens.weight", "embedding.tokens.weight"),
        Rename(f"{layer}.input_layernorm.weight", f"{ours}.attention.pre_norm.weight"),
        *[Rename(f"{layer}.self_attn.{n}_proj.weight", f"{ours}.attention.op.{n}.weight") for n in "qkvo"],
        Rename(f"{layer}.post_attention_layernorm.weight", f"{ours}.feedforward.pre_norm.weight"),
        Rename(f"{layer}.block_sparse_moe.gate.weight", f"{ours}.feedforward.op.router.weight"),
        StackRule([f"{expert}.w{n}.weight" for n in (1, 3)], f"{ours}.feedforward.op.experts.up", count, True),
        StackRule(f"{expert}.w2.weight", f"{ours}.feedforward.op.experts.down", count, True),
        Rename("~norm.weight", "decoder.norm.weight"),
        Rename(f"{heads.get(spec.architecture, 'score')}.{{p}}", "head.out.{p}"),
    ]


FAMILIES = (
    Family(
        name="mixtral",
        about="decoders with a mixture of experts",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            "MixtralForCausalLM", "MixtralModel", "MixtralForSequenceClassification",
            "MixtralForTokenClassification", "MixtralForQuestionAnswering",
        ),
        base=("MixtralModel",),
        prefix="model.",
        aliases={"num_experts": "num_local_experts"},
        sizes={
            "mixtral-8x7b": Size({"max_position_embeddings": 32768}, 46.7e9, "12.9B parameters active a token"),
            "mixtral-8x22b": Size(
                {
                    "hidden_size": 6144, "intermediate_size": 16384, "num_hidden_layers": 56,
                    "num_attention_heads": 48, "vocab_size": 32768, "max_position_embeddings": 65536,
                },
                141e9, "39B parameters active a token",
            ),
        },
    ),
)  # fmt: skip
