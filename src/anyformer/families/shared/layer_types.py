"""Published `layer_types`: some layers have a sliding window, the others full causal attention (Qwen2)."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.fields import Absent
from anyformer.families.base.template import Config, Entry, read_only
from anyformer.families.shared.heads import decoder_mask, window_size
from anyformer.models import DecoderModel
from anyformer.specs.addresses import edit, value_at
from anyformer.specs.messages import quote

KINDS = {"sliding_attention": "sliding", "full_attention": "full"}


def layer_kinds(c: Config) -> list[str]:
    """Return the kind of each layer. sliding_window is read only if use_sliding_window is true."""
    window = c.sliding_window if c.use_sliding_window else None
    windowed = [window is not None and i >= c.max_window_layers for i in range(c.num_hidden_layers)]
    kinds = ["sliding_attention" if each else "full_attention" for each in windowed]
    kinds = kinds if c.layer_types is None else c.layer_types
    if len(kinds) != c.num_hidden_layers or not set(kinds) <= set(KINDS):
        raise ValueError(f"layer_types={quote(kinds, 60)}: each layer needs one of {', '.join(map(repr, KINDS))}")
    if "sliding_attention" in kinds and window is None:
        raise ValueError("layer_types has 'sliding_attention': set use_sliding_window=True and sliding_window")
    return [KINDS[kind] for kind in kinds]


def build(spec: DecoderModel, value: Any, c: Config) -> DecoderModel:
    kinds, stack = layer_kinds(c), spec.decoder
    if "sliding" not in kinds:
        return spec
    windowed = edit(stack.layers, {"attention.op.mask": decoder_mask(c.sliding_window, c.is_causal)})
    blocks = {kind: block for kind, block in (("full", stack.layers), ("sliding", windowed)) if kind in kinds}
    return spec.replace(decoder=stack.replace(layers=blocks, pattern=tuple(kinds)))


def layer_types(spec: DecoderModel) -> list[str]:
    names, pattern = {ours: theirs for theirs, ours in KINDS.items()}, spec.decoder.pattern or ("full",)
    return [names[pattern[i % len(pattern)]] for i in range(spec.decoder.depth)]


def sliding_window(spec: DecoderModel) -> int | None:
    if "sliding_attention" not in layer_types(spec):
        raise Absent
    return window_size(value_at(spec, "decoder.layers.sliding.attention.op.mask"))


def entries(max_window_layers: int) -> dict[str, Entry]:
    return {
        "layer_types": Entry(None, layer_types, build=build),
        "use_sliding_window": Entry(False, lambda spec: "sliding_attention" in layer_types(spec)),
        "sliding_window": Entry(4096, sliding_window),
        "max_window_layers": read_only(max_window_layers),
    }
