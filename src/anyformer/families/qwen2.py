"""Qwen2 [Yang et al. 2024]: a Llama with biases on q, k and v and optional sliding windows in late layers."""

from __future__ import annotations

from anyformer.families.base.family import Size
from anyformer.families.base.fields import Absent, Ignored
from anyformer.families.base.template import Entry, derived
from anyformer.families.llama import ATTENTION, LLAMA, MLP
from anyformer.families.shared import layer_types
from anyformer.families.shared.heads import decoder_classes
from anyformer.parts import Model
from anyformer.specs.addresses import find


def head_dim(spec: Model) -> int:
    """Written only if it is not width / heads: the published config class does not declare it."""
    _, heads = next(find(spec, ATTENTION))
    if heads.head_width * heads.num_heads == spec.width:
        raise Absent
    return heads.head_width


QWEN2 = LLAMA.but(
    "qwen2",
    tokenizer="Qwen2Tokenizer",
    base_tokenizer="",
    changes={
        "length": 32768,
        "embedding.tokens.vocab_size": 151936,
        f"{ATTENTION}.bias": "qkv",
        f"{MLP}.width": 22016,
    },
    classes=decoder_classes("Qwen2", 151936, span_prefix="transformer."),
    config={
        "num_key_value_heads": derived(f"{ATTENTION}.num_kv_heads", of=lambda c: c.num_attention_heads, default=32),
        "head_dim": Entry(
            None,
            head_dim,
            addresses=(f"{ATTENTION}.head_width",),
            read=lambda value, c: value or c.hidden_size // c.num_attention_heads,
        ),
        **layer_types.entries(max_window_layers=28),
        "bos_token_id": Ignored(None, "used by generation"),
        "eos_token_id": Ignored(None, "used by generation"),
        **dict.fromkeys(("attention_bias", "mlp_bias", "pretraining_tp")),
    },
    checks=(),
    sizes={
        "qwen2-7b": Size(
            {
                "hidden_size": 3584,
                "intermediate_size": 18944,
                "num_hidden_layers": 28,
                "num_attention_heads": 28,
                "num_key_value_heads": 4,
                "vocab_size": 152064,
                "max_position_embeddings": 131072,
                "rope_parameters": {"rope_theta": 1e6},
            },
            7.62e9,
        ),
    },
)
