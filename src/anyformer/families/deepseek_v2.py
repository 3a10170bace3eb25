"""DeepSeek-V2 [2024]: latent attention, and many small experts beside some that every token uses."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, Ignored, Removed
from anyformer.families.shared.deepseek import DENSE, FIELDS, MOE, decoder, rules, yarn
from anyformer.models import Model
from anyformer.parts.feedforward.moe import TopK
from anyformer.specs.addresses import at
from anyformer.specs.messages import quote

V2: dict[str, ConfigField] = {
    **FIELDS,
    "topk_method": Field("greedy", lambda spec: method_of(at(spec, f"{MOE}.router"))),
    "mlp_bias": Field(False, f"{DENSE}.feedforward.op.bias"),
    "norm_topk_prob": Ignored(False, "published code leaves the weights as they are"),
    "scoring_func": Removed("softmax", "scores of another kind"),
}


def method_of(router: TopK) -> str:
    return "greedy" if router.groups == 1 else "group_limited_greedy"


def describe(c: Any) -> Model:
    limited = c.topk_method == "group_limited_greedy"
    if c.topk_method not in ("greedy", "group_limited_greedy"):
        raise ValueError(f"topk_method={quote(c.topk_method)} is not supported; valid: greedy, group_limited_greedy")
    if c.hidden_size % c.num_attention_heads:
        raise ValueError(f"hidden_size {c.hidden_size} is not a multiple of {c.num_attention_heads} attention heads")
    groups = {"groups": c.n_group, "top_groups": c.topk_group} if limited else {}
    router = TopK(
        top_k=c.num_experts_per_tok, normalize=False, scale=c.routed_scaling_factor, float32=True, **groups
    )
    return decoder(c, router, interleaved=True, bias=c.mlp_bias)


LONG = {"max_position_embeddings": 163840, "first_k_dense_replace": 1, "num_experts_per_tok": 6}

FAMILIES = (
    Family(
        name="deepseek_v2",
        about="decoders with latent attention and fine-grained experts",
        fields=V2,
        describe=describe,
        rules=rules,
        architectures=("DeepseekV2ForCausalLM", "DeepseekV2Model", "DeepseekV2ForSequenceClassification"),
        base=("DeepseekV2Model",),
        prefix="model.",
        aliases={"num_experts": "n_routed_experts"},
        sizes={
            "deepseek-v2-lite": Size(
                {
                    "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
                    "num_hidden_layers": 27, "num_attention_heads": 16, "q_lora_rank": None, **LONG,
                    "rope_parameters": yarn(0.707),
                },
                15.7e9, "2.4B parameters active a token, embeddings and output apart",
            ),
            "deepseek-v2": Size(
                {
                    "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536,
                    "num_hidden_layers": 60, "num_attention_heads": 128, "n_routed_experts": 160, "n_group": 8,
                    "topk_group": 3, "topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0, **LONG,
                    "rope_parameters": yarn(0.707),
                },
                236e9, "21B parameters active a token",
            ),
        },
    ),
)  # fmt: skip
