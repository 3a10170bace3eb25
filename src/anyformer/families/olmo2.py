"""OLMo 2 [OLMo Team 2024]: a Llama with norms after the branches only, and queries and keys normed across all heads."""

from __future__ import annotations

from anyformer.families.base.family import size_table
from anyformer.families.base.fields import Ignored
from anyformer.families.llama import ATTENTION, LLAMA, SHAPE
from anyformer.families.qwen2 import QWEN2
from anyformer.families.shared.heads import decoder_classes
from anyformer.parts import Causal, GatedMLP, JointNormAttention, RMSNorm, Rope, Sublayer

NORM = RMSNorm(eps=1e-5)
HEADS = JointNormAttention(
    num_heads=32, num_kv_heads=32, head_width=128, bias="", mask=Causal(), position=Rope(), qk_norm=NORM
)
CLASSES = decoder_classes("Olmo2", 50304)

OLMO2 = LLAMA.but(
    "olmo2",
    tokenizer="",
    base_tokenizer="",
    changes={
        "embedding.tokens.vocab_size": 50304,
        "embedding.tokens.padding_index": 1,
        "decoder.layers.attention": Sublayer(op=HEADS, post_norm=NORM),
        "decoder.layers.feedforward": Sublayer(op=GatedMLP(width=11008, activation="silu", bias=False), post_norm=NORM),
        "decoder.norm": NORM,
    },
    classes={name: CLASSES[name] for name in ("Olmo2ForCausalLM", "Olmo2Model", "Olmo2ForSequenceClassification")},
    config={
        "head_dim": QWEN2.config["head_dim"],
        "rms_norm_eps": ("decoder.norm.eps", "decoder.layers.*.post_norm.eps", f"{ATTENTION}.qk_norm.eps"),
        "bos_token_id": Ignored(None, "used by generation"),
        "eos_token_id": Ignored(50279, "used by generation"),
        **dict.fromkeys(("mlp_bias", "pretraining_tp")),
    },
    weights={
        "~layers.{i}.input_layernorm": None,
        "~layers.{i}.post_{attention,feedforward}_layernorm": "decoder.layers.{i}.{attention,feedforward}.post_norm",
        "~layers.{i}.self_attn.{q,k}_norm": "decoder.layers.{i}.attention.op.{q,k}_norm.norm",
    },
    checks=(),
    dropped=(),
    sizes=size_table(
        SHAPE,
        {
            "olmo2-1b": (2048, 8192, 16, 16, 16, 1.48e9),
            "olmo2-7b": (4096, 11008, 32, 32, 32, 7.3e9),
            "olmo2-13b": (5120, 13824, 40, 40, 40, 13.7e9),
            "olmo2-32b": (5120, 27648, 64, 40, 8, 32.2e9),
        },
        vocab_size=100352,
        pad_token_id=100277,
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_theta": 500000.0},
    ),
)
