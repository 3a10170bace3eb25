"""DeepSeek-V3 [2024]: V2 with sigmoid scores, chosen with a correction that balances the experts without a loss."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, Ignored, Removed, again
from anyformer.families.shared.deepseek import ATTENTION, FIELDS, MOE, decoder, rules, yarn
from anyformer.families.shared.heads import TAGGING
from anyformer.models import Model
from anyformer.parts.feedforward.moe import TopK

PREDICT = "how many tokens ahead DeepSeek's own code predicts; those layers are dropped here as in the published class"

V3: dict[str, ConfigField] = {
    **FIELDS,
    "vocab_size": Field(129280, "embedding.tokens.vocab_size"),
    "hidden_size": Field(7168, "width"),
    **again(FIELDS, intermediate_size=18432, first_k_dense_replace=3, n_shared_experts=1),
    "moe_intermediate_size": Field(2048, f"{MOE}.expert.width"),
    "num_hidden_layers": Field(61, "decoder.depth"),
    "num_attention_heads": Field(128, f"{ATTENTION}.num_heads"),
    "num_key_value_heads": Field(128, f"{ATTENTION}.num_heads"),
    "head_dim": Field(None, f"{ATTENTION}.turned_width"),
    "n_routed_experts": Field(256, f"{MOE}.num_experts"),
    "num_experts_per_tok": Field(8, f"{MOE}.router.top_k"),
    "n_group": Field(8, f"{MOE}.router.groups"),
    "topk_group": Field(4, f"{MOE}.router.top_groups"),
    "routed_scaling_factor": Field(2.5, f"{MOE}.router.scale"),
    "norm_topk_prob": Field(True, f"{MOE}.router.normalize"),
    "max_position_embeddings": Field(4096, "length"),
    "rope_interleave": Field(True, f"{ATTENTION}.position.interleaved"),
    **TAGGING,
    "bos_token_id": Ignored(0, "used by generation"),
    "eos_token_id": Ignored(1, "used by generation"),
    "num_nextn_predict_layers": Ignored(1, PREDICT),
    "topk_method": Removed("noaux_tc", "experts chosen in another way"),
    "scoring_func": Removed("sigmoid", "scores of another kind"),
}


def describe(c: Any) -> Model:
    if c.head_dim not in (None, c.qk_rope_head_dim):
        raise ValueError(f"head_dim={c.head_dim} is not qk_rope_head_dim, the channels that turn")
    router = TopK(
        top_k=c.num_experts_per_tok, score="sigmoid", normalize=c.norm_topk_prob, scale=c.routed_scaling_factor,
        groups=c.n_group, top_groups=c.topk_group, group_best=2, correction=True, float32=True,
    )  # fmt: skip
    return decoder(c, router, interleaved=c.rope_interleave)


FAMILIES = (
    Family(
        name="deepseek_v3",
        about="decoders with latent attention and fine-grained experts",
        fields=V3,
        describe=describe,
        rules=rules,
        architectures=(
            "DeepseekV3ForCausalLM", "DeepseekV3Model", "DeepseekV3ForSequenceClassification",
            "DeepseekV3ForTokenClassification",
        ),
        base=("DeepseekV3Model",),
        prefix="model.",
        aliases={"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
        dropped=("~layers.61.*",),  # predicts a second token ahead; V3 has layers 0 to 60
        sizes={
            "deepseek-v3": Size(
                {"max_position_embeddings": 163840, "rope_parameters": yarn(1.0)}, 671e9,
                "37B parameters active a token",
            ),
        },
    ),
)  # fmt: skip
