"""Qwen2 [Yang et al. 2024]: a Llama with biases on queries, keys and values, whose late layers may have a window."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Size
from anyformer.families.base.fields import Absent, Ignored
from anyformer.families.base.template import Config, Entry, derived, helper
from anyformer.families.llama import ATTENTION, LLAMA, MLP
from anyformer.families.shared.heads import decoder_classes, decoder_mask, window_size
from anyformer.specs.addresses import at, edit
from anyformer.specs.messages import quote

KINDS = {"sliding_attention": "sliding", "full_attention": "full"}


def layer_kinds(c: Config) -> list[str]:
    """Which of KINDS each layer is. A window is read only where use_sliding_window says so."""
    window = c.sliding_window if c.use_sliding_window else None
    windowed = [window is not None and i >= c.max_window_layers for i in range(c.num_hidden_layers)]
    kinds = ["sliding_attention" if each else "full_attention" for each in windowed]
    kinds = kinds if c.layer_types is None else c.layer_types
    if len(kinds) != c.num_hidden_layers or not set(kinds) <= set(KINDS):
        raise ValueError(f"layer_types={quote(kinds, 60)}: one of {', '.join(map(repr, KINDS))} for each layer")
    if "sliding_attention" in kinds and window is None:
        raise ValueError("layer_types has 'sliding_attention' without a window: set use_sliding_window, sliding_window")
    return [KINDS[kind] for kind in kinds]


def build_layers(spec: Any, value: Any, c: Config) -> Any:
    kinds, stack = layer_kinds(c), spec.decoder
    if "sliding" not in kinds:
        return spec
    windowed = edit(stack.layers, {"attention.op.mask": decoder_mask(c.sliding_window, c.is_causal)})
    blocks = {kind: block for kind, block in (("full", stack.layers), ("sliding", windowed)) if kind in kinds}
    return spec.replace(decoder=stack.replace(layers=blocks, pattern=tuple(kinds)))


def layer_types(spec: Any) -> list[str]:
    names, pattern = {ours: theirs for theirs, ours in KINDS.items()}, spec.decoder.pattern or ("full",)
    return [names[pattern[i % len(pattern)]] for i in range(spec.decoder.depth)]


def sliding_window(spec: Any) -> int | None:
    if "sliding_attention" not in layer_types(spec):
        raise Absent
    return window_size(at(spec, "decoder.layers.sliding.attention.op.mask"))


def head_dim(spec: Any) -> int:
    """Written only where it is unusual: the published config class has no such field."""
    heads = at(spec, "decoder.layers.full.attention.op" if spec.decoder.pattern else ATTENTION)
    if heads.head_width * heads.num_heads == spec.width:
        raise Absent
    return heads.head_width


QWEN2 = LLAMA.but(
    "qwen2",
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
            None, head_dim, addresses=(f"{ATTENTION}.head_width",),
            read=lambda value, c: value or c.hidden_size // c.num_attention_heads,
        ),
        "layer_types": Entry(None, layer_types, build=build_layers),
        "use_sliding_window": Entry(False, lambda spec: "sliding_attention" in layer_types(spec)),
        "sliding_window": Entry(4096, sliding_window),
        "max_window_layers": helper(28),
        "bos_token_id": Ignored(None, "used by generation"),
        "eos_token_id": Ignored(None, "used by generation"),
        "attention_bias": None,
        "mlp_bias": None,
        "pretraining_tp": None,
    },
    checks=(),
    sizes={
        "qwen2-7b": Size(
            {
                "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
                "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 131072,
                "rope_parameters": {"rope_theta": 1e6},
            },
            7.62e9,
        ),
    },
)  # fmt: skip

FAMILIES = (QWEN2,)
