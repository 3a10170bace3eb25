"""Qwen3 [Yang et al. 2025]: a Qwen2 without biases, with norms of queries and keys and a separate head width."""

from __future__ import annotations

from anyformer.families.base.family import size_table
from anyformer.families.llama import ATTENTION, LLAMA, SHAPE
from anyformer.families.qwen2 import QWEN2
from anyformer.families.shared.heads import decoder_classes
from anyformer.parts import RMSNorm

QWEN3 = QWEN2.but(
    "qwen3",
    changes={f"{ATTENTION}.bias": "", f"{ATTENTION}.head_width": 128, f"{ATTENTION}.qk_norm": RMSNorm(eps=1e-6)},
    classes=decoder_classes("Qwen3", 151936, span_prefix="transformer."),
    config={
        "head_dim": f"{ATTENTION}.head_width",
        "rms_norm_eps": ("decoder.norm.eps", "decoder.layers.*.pre_norm.eps", f"{ATTENTION}.qk_norm.eps"),
        "attention_bias": LLAMA.config["attention_bias"],
    },
    weights={"~layers.{i}.self_attn.{q,k}_norm": "decoder.layers.{i}.attention.op.{q,k}_norm"},
    sizes=size_table(
        f"{SHAPE} tie_word_embeddings",
        {
            "qwen3-0.6b": (1024, 3072, 28, 16, 8, True, 0.6e9),
            "qwen3-8b": (4096, 12288, 36, 32, 8, False, 8.2e9),
        },
        max_position_embeddings=40960,
        rope_parameters={"rope_theta": 1e6},
    ),
)
