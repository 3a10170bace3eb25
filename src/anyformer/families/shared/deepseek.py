"""What the published DeepSeek models share: fields, latent attention, experts of two kinds, names of tensors."""

from __future__ import annotations

import math
from typing import Any

from anyformer.families.base.fields import Absent, ConfigField, Field, Ignored, Removed, activation_at, tied
from anyformer.families.shared.heads import causal, decoder_model, seen
from anyformer.families.shared.rope import ROPE, read_rope, write_rope
from anyformer.models import Model
from anyformer.parts.activation import activation_named
from anyformer.parts.attention.latent import LatentAttention
from anyformer.parts.feedforward.mlp import GatedMLP
from anyformer.parts.feedforward.moe import MoE, TopK
from anyformer.parts.head.language import LMHead
from anyformer.parts.norm import RMSNorm
from anyformer.specs.addresses import at
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rename, Rule
from anyformer.weights.rules import Stack as StackRule

DENSE, MOE = "decoder.layers.dense", "decoder.layers.sparse.feedforward.op"
ATTENTION = f"{DENSE}.attention.op"

FIELDS: dict[str, ConfigField] = {
    "vocab_size": Field(102400, "embedding.tokens.vocab_size"),
    "hidden_size": Field(4096, "width"),
    "intermediate_size": Field(11008, f"{DENSE}.feedforward.op.width"),
    "moe_intermediate_size": Field(1407, f"{MOE}.expert.width"),
    "num_hidden_layers": Field(32, "decoder.depth"),
    "first_k_dense_replace": Field(0, lambda spec: spec.decoder.pattern.count("dense")),
    "num_attention_heads": Field(32, f"{ATTENTION}.num_heads"),
    "num_key_value_heads": Field(None, f"{ATTENTION}.num_heads"),
    "kv_lora_rank": Field(512, f"{ATTENTION}.rank"),
    "q_lora_rank": Field(1536, f"{ATTENTION}.query_rank"),
    "qk_nope_head_dim": Field(128, f"{ATTENTION}.head_width"),
    "qk_rope_head_dim": Field(64, f"{ATTENTION}.turned_width"),
    "v_head_dim": Field(128, f"{ATTENTION}.value_width"),
    "qk_head_dim": Ignored(None, "the sum of qk_nope_head_dim and qk_rope_head_dim, whatever it says"),
    "head_dim": Ignored(None, "replaced by qk_rope_head_dim"),
    "n_routed_experts": Field(64, f"{MOE}.num_experts"),
    "n_shared_experts": Field(2, lambda spec: shared_of(at(spec, MOE))),
    "num_experts_per_tok": Field(None, f"{MOE}.router.top_k"),
    "n_group": Field(None, lambda spec: groups_of(at(spec, f"{MOE}.router"), "groups")),
    "topk_group": Field(None, lambda spec: groups_of(at(spec, f"{MOE}.router"), "top_groups")),
    "routed_scaling_factor": Field(1.0, f"{MOE}.router.scale"),
    "hidden_act": Field("silu", activation_at(f"{MOE}.expert.activation")),
    "max_position_embeddings": Field(2048, "length"),
    "initializer_range": Field(0.02, lambda spec: spec.init["*"].std),
    "rms_norm_eps": Field(1e-6, "decoder.norm.eps"),
    "rope_parameters": Field(None, lambda spec: write_rope(at(spec, f"{ATTENTION}.position")), within=ROPE),
    "rope_theta": Field(None),
    "rope_scaling": Field(None, within=ROPE),
    "original_max_position_embeddings": Field(None),
    "attention_bias": Field(False, f"{ATTENTION}.bias"),
    "attention_dropout": Field(0.0, f"{ATTENTION}.dropout"),
    "tie_word_embeddings": Field(False, tied(LMHead)),
    "pad_token_id": Field(None, "embedding.tokens.padding_index"),
    "problem_type": Field(None, "head.problem"),
    "is_causal": causal(f"{ATTENTION}.mask"),
    "output_router_logits": Ignored(False, "which outputs are returned by default; honoured by forward"),
    "bos_token_id": Ignored(1, "used by generation"),
    "eos_token_id": Ignored(2, "used by generation"),
    "pretraining_tp": Ignored(1, "splits the same sums over devices"),
    "ep_size": Ignored(1, "over how many devices experts are spread"),
    "aux_loss_alpha": Ignored(0.001, "a loss of DeepSeek's own trainer, which the published class does not take"),
    "seq_aux": Ignored(True, "a loss of DeepSeek's own trainer, which the published class does not take"),
    "moe_layer_freq": Removed(1, "dense layers among the sparse ones"),
}


def shared_of(moe: MoE) -> int:
    return 0 if moe.shared is None else moe.shared.width // moe.expert.width


def groups_of(router: TopK, name: str) -> int:
    if router.groups == 1:  # then it does not matter what a config says
        raise Absent
    return getattr(router, name)


def decoder(c: Any, router: TopK, interleaved: bool, bias: bool = False) -> Model:
    """What both versions share."""
    heads = c.num_attention_heads
    if c.num_key_value_heads is not None and 2 * c.num_key_value_heads <= heads:  # others share nothing, as published
        raise ValueError(f"num_key_value_heads={c.num_key_value_heads}: each of {heads} heads has its own keys here")
    norm, activation = RMSNorm(eps=c.rms_norm_eps), activation_named(c.hidden_act)

    def mlp(width: int, bias: bool = bias) -> GatedMLP:
        return GatedMLP(width=width, activation=activation, bias=bias)

    attention = LatentAttention(
        num_heads=c.num_attention_heads,
        rank=c.kv_lora_rank,
        query_rank=c.q_lora_rank,
        head_width=c.qk_nope_head_dim,
        turned_width=c.qk_rope_head_dim,
        value_width=c.v_head_dim,
        bias=c.attention_bias,
        mask=seen(c),
        position=read_rope(c).replace(interleaved=interleaved),
        scale=score_scale(c),
        dropout=c.attention_dropout,
    )
    experts = MoE(
        num_experts=c.n_routed_experts,
        router=router,
        expert=mlp(c.moe_intermediate_size, bias=False),
        shared=mlp(c.moe_intermediate_size * c.n_shared_experts) if c.n_shared_experts else None,
    )
    first = Sublayer(pre_norm=norm, op=attention)
    kinds = {
        "dense": Block(attention=first, feedforward=Sublayer(pre_norm=norm, op=mlp(c.intermediate_size))),
        "sparse": Block(attention=first, feedforward=Sublayer(pre_norm=norm, op=experts)),
    }
    depth = c.num_hidden_layers
    dense = min(c.first_k_dense_replace, depth)
    pattern = ("dense",) * dense + ("sparse",) * (depth - dense) or ("sparse",)
    stack = Stack(layers=kinds, pattern=pattern, depth=depth, norm=norm)
    return decoder_model(c, stack, length=c.max_position_embeddings)


def score_scale(c: Any) -> float | None:
    """YaRN warms all channels, not only those that turn; published code does with any scaling that says so."""
    scaling: Any = read_rope(c).scaling
    mscale = (c.rope_scaling or c.rope_parameters or {}).get("mscale_all_dim")
    if not mscale or scaling is None:
        return None
    factor = scaling.factor
    warm = 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0
    return warm * warm * (c.qk_nope_head_dim + c.qk_rope_head_dim) ** -0.5


def rules(spec: Model) -> list[Rule]:
    layer, ours = "~layers.{i}", "decoder.layers.{i}"
    queries = "q_proj" if at(spec, f"{ATTENTION}.query_rank") is None else "q_b_proj"
    attention = {
        "q_a_proj": "q_down", "q_a_layernorm": "q_norm", queries: "q", "kv_a_proj_with_mqa": "kv_down",
        "kv_a_layernorm": "kv_norm", "kv_b_proj": "kv_up", "o_proj": "o",
    }  # fmt: skip
    moe, count = f"{ours}.feedforward.op", at(spec, f"{MOE}.num_experts")
    expert = f"{layer}.mlp.experts.{{e}}"
    return [
        Rename("~embed_tokens.weight", "embedding.tokens.weight"),
        Rename(f"{layer}.input_layernorm.weight", f"{ours}.attention.pre_norm.weight"),
        *[Rename(f"{layer}.self_attn.{t}.{{p}}", f"{ours}.attention.op.{n}.{{p}}") for t, n in attention.items()],
        Rename(f"{layer}.post_attention_layernorm.weight", f"{ours}.feedforward.pre_norm.weight"),
        *[Rename(f"{layer}.mlp.{n}_proj.{{p}}", f"{moe}.{n}.{{p}}") for n in ("gate", "up", "down")],
        *[Rename(f"{layer}.mlp.shared_experts.{n}_proj.{{p}}", f"{moe}.shared.{n}.{{p}}")
          for n in ("gate", "up", "down")],
        Rename(f"{layer}.mlp.gate.weight", f"{moe}.router.weight"),
        Rename(f"{layer}.mlp.gate.e_score_correction_bias", f"{moe}.router.correction"),
        StackRule([f"{expert}.{n}_proj.weight" for n in ("gate", "up")], f"{moe}.experts.up", count, True),
        StackRule(f"{expert}.down_proj.weight", f"{moe}.experts.down", count, True),
        Rename("~norm.weight", "decoder.norm.weight"),
        Rename(f"{'lm_head' if isinstance(spec.head, LMHead) else 'score'}.{{p}}", "head.out.{p}"),
    ]  # fmt: skip


def yarn(mscale: float) -> dict[str, Any]:
    return {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "mscale": mscale, "mscale_all_dim": mscale, "original_max_position_embeddings": 4096,
    }  # fmt: skip
