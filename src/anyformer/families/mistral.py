"""Mistral [Jiang et al. 2023]: a Llama with grouped queries and sliding-window attention."""

from __future__ import annotations

from anyformer.families.base.family import Size
from anyformer.families.base.template import derived
from anyformer.families.llama import ATTENTION, LLAMA, MLP
from anyformer.families.shared.heads import decoder_classes, windowed_mask
from anyformer.parts import Causal, Window

LONG = {"rms_norm_eps": 1e-5, "max_position_embeddings": 32768}

MISTRAL = LLAMA.but(
    "mistral",
    base_tokenizer="always",
    changes={
        "length": 131072,
        f"{ATTENTION}.num_kv_heads": 8,
        f"{ATTENTION}.mask": Causal() & Window(size=4096),
        f"{MLP}.width": 14336,
    },
    classes=decoder_classes("Mistral", 32000),
    config={
        "num_key_value_heads": derived(
            f"{ATTENTION}.num_kv_heads", of=lambda c: c.num_attention_heads, default=8, unset=(None,)
        ),
        **windowed_mask(f"{ATTENTION}.mask"),
        "attention_bias": None,
        "mlp_bias": None,
        "pretraining_tp": None,
    },
    checks=(),
    sizes={
        "mistral-7b": Size(LONG, 7.24e9),
        "mistral-7b-v0.3": Size(
            {**LONG, "vocab_size": 32768, "sliding_window": None, "rope_parameters": {"rope_theta": 1e6}}, 7.25e9
        ),
    },
)
