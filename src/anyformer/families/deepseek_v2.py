"""DeepSeek-V2 [2024]: multi-head latent attention, and many small experts plus shared experts that every token uses."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, Ignored, Removed
from anyformer.families.base.template import Class, Config, Entry, activation, divides, entry, parameter, tied
from anyformer.families.shared.deepseek import DENSE_LAYERS, MOE, SHARED_EXPERTS, experts, queries, score_scale, yarn
from anyformer.families.shared.heads import causal_mask
from anyformer.families.shared.rope import rope
from anyformer.parts import (
    Block, Causal, ClassifyHead, DecoderModel, GatedMLP, LMHead, LastToken, LatentAttention, MoE, Model, Normal, Pool,
    RMSNorm, Rope, Stack, Sublayer, TextEmbedding, Tokens, TopK,
)  # fmt: skip
from anyformer.specs.addresses import value_at
from anyformer.specs.messages import quote

ATTENTION, LAYER = "decoder.layers.attention.op", "decoder.layers.{i}"
DENSE = "decoder.layers.dense.feedforward.op"

NORM = RMSNorm(eps=1e-6)
LATENT = Sublayer(
    pre_norm=NORM,
    op=LatentAttention(
        num_heads=32,
        rank=512,
        query_rank=1536,
        head_width=128,
        rotary_width=64,
        value_width=128,
        mask=Causal(),
        position=Rope(interleaved=True),
    ),
)

TEMPLATE = DecoderModel(
    width=4096,
    length=2048,
    embedding=TextEmbedding(tokens=Tokens(vocab_size=102400)),
    decoder=Stack(
        depth=32,
        layers={
            "dense": Block(
                attention=LATENT,
                feedforward=Sublayer(pre_norm=NORM, op=GatedMLP(width=11008, activation="silu", bias=False)),
            ),
            "sparse": Block(
                attention=LATENT,
                feedforward=Sublayer(
                    pre_norm=NORM,
                    op=MoE(
                        num_experts=64,
                        router=TopK(top_k=6, normalize=False, float32=True),
                        expert=GatedMLP(width=1407, activation="silu", bias=False),
                        shared=GatedMLP(width=2 * 1407, activation="silu", bias=False),
                    ),
                ),
            ),
        },
        pattern=("sparse",) * 32,
        norm=NORM,
    ),
    init={"*": Normal(std=0.02)},
)

METHODS = ("greedy", "group_limited_greedy")


def group_count(name: str) -> Entry:
    """An entry that is read only if experts are chosen in groups."""

    def recover(spec: Model) -> int:
        if value_at(spec, f"{MOE}.router.groups") == 1:
            raise Absent
        return value_at(spec, f"{MOE}.router.{name}")

    return entry(
        f"{MOE}.router.{name}",
        default=None,
        path=recover,
        read=lambda value, c: value if c.topk_method == METHODS[1] else 1,
    )


CONFIG: dict[str, Any] = {
    "vocab_size": ("embedding.tokens.vocab_size", "head.vocab_size"),
    "hidden_size": "width",
    "intermediate_size": f"{DENSE}.width",
    "moe_intermediate_size": f"{MOE}.expert.width",
    "num_hidden_layers": "decoder.depth",
    "first_k_dense_replace": DENSE_LAYERS,
    "num_attention_heads": f"{ATTENTION}.num_heads",
    "num_key_value_heads": Entry(None, "decoder.layers.dense.attention.op.num_heads"),
    "kv_lora_rank": f"{ATTENTION}.rank",
    "q_lora_rank": f"{ATTENTION}.query_rank",
    "qk_nope_head_dim": f"{ATTENTION}.head_width",
    "qk_rope_head_dim": f"{ATTENTION}.rotary_width",
    "v_head_dim": f"{ATTENTION}.value_width",
    "qk_head_dim": Ignored(None, "always qk_nope_head_dim + qk_rope_head_dim"),
    "head_dim": Ignored(None, "replaced by qk_rope_head_dim"),
    "n_routed_experts": f"{MOE}.num_experts",
    "n_shared_experts": SHARED_EXPERTS,
    "num_experts_per_tok": entry(f"{MOE}.router.top_k", default=None),
    "topk_method": Entry("greedy", lambda spec: METHODS[value_at(spec, f"{MOE}.router.groups") > 1]),
    "n_group": group_count("groups"),
    "topk_group": group_count("top_groups"),
    "routed_scaling_factor": f"{MOE}.router.scale",
    "norm_topk_prob": Ignored(False, "published code never normalises the weights"),
    "hidden_act": activation("decoder.layers.feedforward.op.**.activation"),
    "mlp_bias": (f"{DENSE}.bias", f"{MOE}.shared.bias"),
    "max_position_embeddings": "length",
    "initializer_range": "init.*.std",
    "rms_norm_eps": ("decoder.norm.eps", "decoder.layers.*.pre_norm.eps"),
    **rope(f"{ATTENTION}.position", interleaved=lambda c: True),
    "attention_bias": f"{ATTENTION}.bias",
    "attention_dropout": f"{ATTENTION}.dropout",
    "tie_word_embeddings": tied(False, LMHead="head.out.weight"),
    "pad_token_id": ("embedding.tokens.padding_index", "head.pool.take.padding_token"),
    "is_causal": causal_mask(f"{ATTENTION}.mask"),
    "output_router_logits": Ignored(False, "which outputs are returned by default; read by forward"),
    "bos_token_id": Ignored(1, "used by generation"),
    "eos_token_id": Ignored(2, "used by generation"),
    "pretraining_tp": Ignored(1, "how sums are split over devices"),
    "ep_size": Ignored(1, "the number of devices for the experts"),
    "aux_loss_alpha": Ignored(0.001, "a loss of DeepSeek's trainer that the published class does not have"),
    "seq_aux": Ignored(True, "a loss of DeepSeek's trainer that the published class does not have"),
    "moe_layer_freq": Removed(1, "dense layers among the sparse ones"),
    "scoring_func": Removed("softmax", "other router scores"),
}


WEIGHTS: dict[str, Any] = {
    "~embed_tokens": "embedding.tokens",
    "~layers.{i}.input_layernorm": f"{LAYER}.attention.pre_norm",
    "~layers.{i}.self_attn": queries,
    "~layers.{i}.self_attn.{q_a_proj,q_a_layernorm}": f"{LAYER}.attention.op.{{q_down,q_norm}}",
    "~layers.{i}.self_attn.{kv_a_proj_with_mqa,kv_a_layernorm}": f"{LAYER}.attention.op.{{kv_down,kv_norm}}",
    "~layers.{i}.self_attn.{kv_b,o}_proj": f"{LAYER}.attention.op.{{kv_up,o}}",
    "~layers.{i}.post_attention_layernorm": f"{LAYER}.feedforward.pre_norm",
    "~layers.{i}.mlp.{gate,up,down}_proj": f"{LAYER}.feedforward.op.{{gate,up,down}}",
    "~layers.{i}.mlp.shared_experts.{gate,up,down}_proj": f"{LAYER}.feedforward.op.shared.{{gate,up,down}}",
    "~layers.{i}.mlp.gate.e_score_correction_bias": parameter(f"{LAYER}.feedforward.op.router.correction"),
    "~layers.{i}.mlp.gate": f"{LAYER}.feedforward.op.router",
    "~layers.{i}.mlp.experts.{e}": experts,
    "~norm": "decoder.norm",
}


def check_key_heads(c: Config) -> None:
    heads, keys = c.num_attention_heads, c.num_key_value_heads
    if keys is not None and 2 * keys <= heads:  # published: other values have no effect
        raise ValueError(f"num_key_value_heads={keys} is not supported: each of the {heads} heads has its own keys")


def check_topk_method(c: Config) -> None:
    if c.topk_method not in METHODS:
        raise ValueError(f"topk_method={quote(c.topk_method)} is not supported; valid: {', '.join(METHODS)}")


LONG = {"max_position_embeddings": 163840, "first_k_dense_replace": 1, "num_experts_per_tok": 6}

DEEPSEEK_V2 = Family(
    name="deepseek_v2",
    about="decoders with latent attention and fine-grained experts",
    template=TEMPLATE,
    classes={
        "DeepseekV2ForCausalLM": Class(LMHead(vocab_size=102400), "lm_head"),
        "DeepseekV2Model": Class(prefix=""),
        "DeepseekV2ForSequenceClassification": Class(
            ClassifyHead(num_labels=2, pool=Pool(take=LastToken()), bias=False), "score"
        ),
    },
    config=CONFIG,
    computed={f"{ATTENTION}.scale": score_scale},
    weights=WEIGHTS,
    prefix="model.",
    checks=(check_topk_method, divides("num_attention_heads", "hidden_size"), check_key_heads),
    aliases={"num_experts": "n_routed_experts"},
    sizes={
        "deepseek-v2-lite": Size(
            {
                "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
                "num_hidden_layers": 27, "num_attention_heads": 16, "q_lora_rank": None, **LONG,
                "rope_parameters": yarn(0.707),
            },
            15.7e9, "2.4B parameters active per token, without embedding and output",
        ),
        "deepseek-v2": Size(
            {
                "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536,
                "num_hidden_layers": 60, "num_attention_heads": 128, "n_routed_experts": 160, "n_group": 8,
                "topk_group": 3, "topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0, **LONG,
                "rope_parameters": yarn(0.707),
            },
            236e9, "21B parameters active per token",
        ),
    },
)  # fmt: skip
