"""Qwen3-MoE [Yang et al. 2025]: a Llama with many small experts, and a norm of queries and keys."""

from __future__ import annotations

from anyformer.families.base.family import Size
from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import Class, Config, activation, derived, entry, read_only
from anyformer.families.llama import ATTENTION, LLAMA, TEMPLATE
from anyformer.families.mixtral import MIXTRAL
from anyformer.families.qwen2 import QWEN2
from anyformer.families.shared.deepseek import MOE, experts
from anyformer.families.shared.heads import decoder_classes, optional_window
from anyformer.parts import Attention, Causal, GatedMLP, LMHead, MoE, PooledBalance, RMSNorm, Rope, TopK
from anyformer.specs.addresses import edit

HEADS = Attention(
    num_heads=32, num_kv_heads=4, head_width=64, bias="", mask=Causal(), position=Rope(), qk_norm=RMSNorm(eps=1e-6)
)
EXPERTS = MoE(num_experts=128, router=TopK(top_k=8, normalize=False), expert=GatedMLP(width=768, activation="silu"))
DENSE = edit(TEMPLATE.decoder.layers, {"attention.op": HEADS, "feedforward.op.width": 6144})
BALANCE = PooledBalance(weight=0.001, top_k=8)


def layer_kinds(dense: list[int] | None, c: Config) -> tuple[str, ...]:
    """Return the kind of each layer: every decoder_sparse_step-th has experts, unless mlp_only_layers has its index."""
    sparse = (i not in (dense or ()) and (i + 1) % c.decoder_sparse_step == 0 for i in range(c.num_hidden_layers))
    return tuple("sparse" if each else "dense" for each in sparse)


def dense_layers(kinds: tuple[str, ...]) -> list[int]:
    return [i for i, kind in enumerate(kinds) if kind == "dense"]


QWEN3_MOE = LLAMA.but(
    "qwen3_moe",
    tokenizer="Qwen2Tokenizer",
    base_tokenizer="",
    about="decoders with a mixture of experts",
    changes={
        "width": 2048,
        "length": 32768,
        "embedding.tokens.vocab_size": 151936,
        "decoder.depth": 24,
        "decoder.layers": {"dense": DENSE, "sparse": edit(DENSE, {"feedforward.op": EXPERTS})},
        "decoder.pattern": ("sparse",) * 24,
    },
    classes={
        **decoder_classes("Qwen3Moe", 151936, span_prefix="transformer."),
        "Qwen3MoeForCausalLM": Class(LMHead(vocab_size=151936, balance=BALANCE), "lm_head"),
    },
    config={
        "intermediate_size": "decoder.layers.dense.feedforward.op.width",
        "moe_intermediate_size": f"{MOE}.expert.width",
        "hidden_act": activation("decoder.layers.feedforward.op.**.activation"),
        "num_key_value_heads": derived(f"{ATTENTION}.num_kv_heads", of=lambda c: c.num_attention_heads, default=4),
        "head_dim": QWEN2.config["head_dim"],
        "rms_norm_eps": ("decoder.norm.eps", "decoder.layers.*.pre_norm.eps", f"{ATTENTION}.qk_norm.eps"),
        **optional_window(f"{ATTENTION}.mask", 4096),
        "mlp_only_layers": entry("decoder.pattern", default=None, read=layer_kinds, write=dense_layers),
        "decoder_sparse_step": read_only(1),
        "num_experts": f"{MOE}.num_experts",
        "norm_topk_prob": f"{MOE}.router.normalize",
        **{n: MIXTRAL.config[n] for n in ("num_experts_per_tok", "router_aux_loss_coef", "output_router_logits")},
        **dict.fromkeys(("bos_token_id", "eos_token_id"), Ignored(None, "used by generation")),
        **dict.fromkeys(("mlp_bias", "pretraining_tp")),
    },
    checks=(),
    aliases={"num_local_experts": "num_experts"},
    weights={
        "~layers.{i}.self_attn.{q,k}_norm": "decoder.layers.{i}.attention.op.{q,k}_norm",
        "~layers.{i}.mlp.gate": "decoder.layers.{i}.feedforward.op.router",
        "~layers.{i}.mlp.experts.{e}": experts,
    },
    sizes={
        "qwen3-30b-a3b": Size(
            {"num_hidden_layers": 48, "head_dim": 128, "norm_topk_prob": True, "max_position_embeddings": 40960,
             "rope_parameters": {"rope_theta": 1e6}}, 30.5e9, "3.3B parameters active per token",
        ),
    },
)  # fmt: skip
