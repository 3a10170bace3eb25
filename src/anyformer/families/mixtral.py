"""Mixtral [Jiang et al. 2024]: Mistral with eight experts in each feed-forward layer, two experts per token."""

from __future__ import annotations

from anyformer.families.base.family import size_table
from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import Class, Config, activation, equal_heads
from anyformer.families.llama import ATTENTION, MLP, SHAPE
from anyformer.families.mistral import MISTRAL
from anyformer.families.shared.heads import decoder_classes
from anyformer.families.shared.rope import rope
from anyformer.parts import Causal, GatedMLP, LMHead, MoE, Model, PooledBalance, RMSNorm, Rope, TopK
from anyformer.specs.addresses import value_at
from anyformer.weights.rules import Rule, Stack


def experts(theirs: str, spec: Model) -> list[Rule]:
    """Files have one tensor per expert; we stack the experts of a layer."""
    ours, count = "decoder.layers.{i}.feedforward.op.experts", value_at(spec, f"{MLP}.num_experts")
    return [
        Stack([f"{theirs}.w{n}.weight" for n in (1, 3)], f"{ours}.up", count, True),
        Stack(f"{theirs}.w2.weight", f"{ours}.down", count, True),
    ]


def check_heads(c: Config) -> None:
    if c.head_dim is None:
        equal_heads(c)


MIXTRAL = MISTRAL.but(
    "mixtral",
    about="decoders with a mixture of experts",
    changes={
        f"{ATTENTION}.mask": Causal(),
        f"{ATTENTION}.position": Rope(base=1e6),
        MLP: MoE(num_experts=8, router=TopK(top_k=2), expert=GatedMLP(width=14336, activation="silu")),
        "decoder.layers.*.pre_norm": RMSNorm(eps=1e-5),
        "decoder.norm": RMSNorm(eps=1e-5),
    },
    classes={
        **decoder_classes("Mixtral", 32000),
        "MixtralForCausalLM": Class(LMHead(vocab_size=32000, balance=PooledBalance(weight=0.001, top_k=2)), "lm_head"),
    },
    config={
        "intermediate_size": f"{MLP}.expert.width",
        "hidden_act": activation(f"{MLP}.expert.activation"),
        "num_experts_per_tok": (f"{MLP}.router.top_k", "head.balance.top_k"),
        "num_local_experts": f"{MLP}.num_experts",
        "router_aux_loss_coef": "head.balance.weight",
        "router_jitter_noise": f"{MLP}.jitter",
        **rope(f"{ATTENTION}.position", theta=1e6),
        "output_router_logits": Ignored(False, "which outputs are returned by default; read by forward"),
    },
    checks=(check_heads,),
    aliases={"num_experts": "num_local_experts"},
    weights={
        "~layers.{i}.mlp.{gate,up,down}_proj": None,
        "~layers.{i}.block_sparse_moe.gate": "decoder.layers.{i}.feedforward.op.router",
        "~layers.{i}.block_sparse_moe.experts.{e}": experts,
    },
    dropped=(),
    sizes=size_table(
        f"{SHAPE} vocab_size max_position_embeddings",
        {
            "mixtral-8x7b": (4096, 14336, 32, 32, 8, 32000, 32768, 46.7e9, "12.9B parameters active per token"),
            "mixtral-8x22b": (6144, 16384, 56, 48, 8, 32768, 65536, 141e9, "39B parameters active per token"),
        },
    ),
)
