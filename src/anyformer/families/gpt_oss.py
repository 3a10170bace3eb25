"""gpt-oss [OpenAI 2025]: experts with bounded activations, attention sinks, a sliding window in every other layer."""

from __future__ import annotations

from anyformer.families.base.family import Size
from anyformer.families.base.fields import Ignored, Quantized
from anyformer.families.base.template import Class, choice, derived, parameter
from anyformer.families.llama import ATTENTION, MLP
from anyformer.families.mixtral import MIXTRAL
from anyformer.families.shared.heads import decoder_classes
from anyformer.families.shared.layer_types import decoder_entries
from anyformer.families.shared.rope import rope
from anyformer.parts import (
    Attention, Block, Causal, ClampedGatedMLP, LMHead, Mask, MoE, Model, PooledBalance, Rope, Sinks, TopK, Window,
    YarnScaling,
)  # fmt: skip
from anyformer.specs.addresses import edit
from anyformer.weights.mxfp4 import MXFP4
from anyformer.weights.rules import Alternate, Rename, Rule

YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
POSITION = Rope(base=150000.0, scaling=YarnScaling(factor=32.0, length=4096, truncate=False))


def layer(mask: Mask) -> Block:
    heads = Attention(num_heads=64, num_kv_heads=8, head_width=64, mask=mask, position=POSITION, normalizer=Sinks())
    experts = MoE(num_experts=128, router=TopK(top_k=4, bias=True), expert=ClampedGatedMLP(width=2880))
    return edit(MIXTRAL.template.decoder.layers, {"attention.op": heads, "feedforward.op": experts})


def experts(theirs: str, spec: Model) -> list[Rule]:
    ours = "decoder.layers.{i}.feedforward.op.experts"
    up, down = Alternate(f"{theirs}.gate_up_proj", f"{ours}.up"), Rename(f"{theirs}.down_proj", f"{ours}.down")
    biases = (
        Alternate(f"{theirs}.gate_up_proj_bias", f"{ours}.up_bias"),
        Rename(f"{theirs}.down_proj_bias", f"{ours}.down_bias"),
    )
    return [up, down, *biases, MXFP4(up), MXFP4(down)]


GPT_OSS = MIXTRAL.but(
    "gpt_oss",
    tokenizer="",
    changes={
        "width": 2880,
        "embedding.tokens.vocab_size": 201088,
        "decoder.depth": 36,
        "decoder.layers": {"sliding": layer(Causal() & Window(size=128)), "full": layer(Causal())},
        "decoder.pattern": ("sliding", "full"),
    },
    classes={
        **{name: each for name, each in decoder_classes("GptOss", 201088).items() if "Question" not in name},
        "GptOssForCausalLM": Class(LMHead(vocab_size=201088, balance=PooledBalance(weight=0.001, top_k=4)), "lm_head"),
    },
    config={
        "head_dim": derived(f"{ATTENTION}.head_width", of=lambda c: c.hidden_size // c.num_attention_heads, default=64),
        "attention_bias": choice(f"{ATTENTION}.bias", {False: "", True: "qkvo"}),
        "swiglu_alpha": f"{MLP}.expert.alpha",
        "swiglu_limit": f"{MLP}.expert.limit",
        **rope(f"{ATTENTION}.position", theta=150000.0, default=YARN),
        **decoder_entries(is_windowed=lambda c, layer: layer % 2 == 0),
        "router_jitter_noise": None,
        "hidden_act": Ignored("silu", "published code uses only swiglu_alpha and swiglu_limit"),
        "quantization_config": Quantized(None, "how the weights are stored", ("mxfp4",)),
        **dict.fromkeys(("bos_token_id", "eos_token_id"), Ignored(None, "used by generation")),
    },
    checks=(),
    weights={
        "~layers.{i}.block_sparse_moe.gate": None,
        "~layers.{i}.block_sparse_moe.experts.{e}": None,
        "~layers.{i}.self_attn.sinks": parameter("decoder.layers.{i}.attention.op.normalizer.weight"),
        "~layers.{i}.mlp.router": "decoder.layers.{i}.feedforward.op.router",
        "~layers.{i}.mlp.experts": experts,
    },
    sizes={
        "gpt-oss-20b": Size(
            {"num_hidden_layers": 24, "num_local_experts": 32}, 20.9e9, "3.6B parameters active, without the embedding"
        ),
        "gpt-oss-120b": Size({}, 117e9, "5.1B parameters active, without the embedding"),
    },
)
