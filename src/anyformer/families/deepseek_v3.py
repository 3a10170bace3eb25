"""DeepSeek-V3 [2024]: V2 with sigmoid router scores and a correction bias that balances experts without a loss."""

from __future__ import annotations

from anyformer.families.base.family import Size
from anyformer.families.base.fields import Ignored, Removed
from anyformer.families.base.template import Config, Entry
from anyformer.families.deepseek_v2 import ATTENTION, DEEPSEEK_V2, DENSE, check_key_heads
from anyformer.families.shared.deepseek import MOE, yarn
from anyformer.families.shared.heads import TAGGER_FIELDS, decoder_classes
from anyformer.families.shared.rope import rope
from anyformer.parts import GatedMLP, MoE, TopK

PREDICT = "multi-token prediction layers of DeepSeek's code; dropped, as in the published class"
FIRST = "decoder.layers.dense.attention.op"  # sparse layers have the same attention


def check_head_dim(c: Config) -> None:
    if c.head_dim not in (None, c.qk_rope_head_dim):
        raise ValueError(f"head_dim={c.head_dim} must equal qk_rope_head_dim {c.qk_rope_head_dim}")


DEEPSEEK_V3 = DEEPSEEK_V2.but(
    "deepseek_v3",
    changes={
        "width": 7168,
        "length": 4096,
        "embedding.tokens.vocab_size": 129280,
        "decoder.depth": 61,
        "decoder.pattern": ("dense",) * 3 + ("sparse",) * 58,
        f"{ATTENTION}.num_heads": 128,
        f"{DENSE}.width": 18432,
        MOE: MoE(
            num_experts=256,
            router=TopK(
                top_k=8,
                score="sigmoid",
                normalize=True,
                scale=2.5,
                groups=8,
                top_groups=4,
                group_best=2,
                correction=True,
                float32=True,
            ),
            expert=GatedMLP(width=2048, activation="silu", bias=False),
            shared=GatedMLP(width=2048, activation="silu", bias=False),
        ),
    },
    classes={
        name: each
        for name, each in decoder_classes("DeepseekV3", 129280).items()
        if not name.endswith("ForQuestionAnswering")
    },
    config={
        "num_key_value_heads": Entry(128, f"{FIRST}.num_heads"),
        "head_dim": Entry(None, f"{FIRST}.rotary_width"),
        "num_experts_per_tok": f"{MOE}.router.top_k",
        "n_group": f"{MOE}.router.groups",
        "topk_group": f"{MOE}.router.top_groups",
        "norm_topk_prob": f"{MOE}.router.normalize",
        **rope(f"{ATTENTION}.position", interleaved=lambda c: c.rope_interleave),
        "rope_interleave": Entry(True, f"{FIRST}.position.interleaved"),
        **TAGGER_FIELDS,
        "bos_token_id": Ignored(0, "used by generation"),
        "eos_token_id": Ignored(1, "used by generation"),
        "num_nextn_predict_layers": Ignored(1, PREDICT),
        "topk_method": Removed("noaux_tc", "other ways to choose experts"),
        "scoring_func": Removed("sigmoid", "other router scores"),
        "mlp_bias": None,
    },
    checks=(check_head_dim, check_key_heads),
    aliases={"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    dropped=("~layers.61.*",),  # the multi-token prediction layer; V3 has layers 0 to 60
    sizes={
        "deepseek-v3": Size(
            {"max_position_embeddings": 163840, "rope_parameters": yarn(1.0)}, 671e9, "37B parameters active per token"
        ),
    },
)
