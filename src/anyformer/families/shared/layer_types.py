"""Published `layer_types`: some layers have a sliding window, the others full causal attention (Qwen2, gpt-oss)."""

from __future__ import annotations

import functools
from collections.abc import Callable

from anyformer.families.base.fields import Absent
from anyformer.families.base.template import Config, Entry, read_only
from anyformer.families.shared.heads import decoder_mask, window_size
from anyformer.models import DecoderModel
from anyformer.specs.addresses import edit, value_at
from anyformer.specs.messages import quote

KINDS = {"sliding_attention": "sliding", "full_attention": "full"}


def layer_kinds(c: Config, usual: Callable[[Config], list[str]]) -> list[str]:
    """Return the kind of each layer. If the published class has use_sliding_window, sliding_window is read only if it
    is true."""
    window = c.sliding_window if getattr(c, "use_sliding_window", True) else None
    kinds = usual(c) if c.layer_types is None else c.layer_types
    if len(kinds) != c.num_hidden_layers or not set(kinds) <= set(KINDS):
        raise ValueError(f"layer_types={quote(kinds, 60)}: each layer needs one of {', '.join(map(repr, KINDS))}")
    if "sliding_attention" in kinds and window is None:
        fix = "use_sliding_window=True and sliding_window" if hasattr(c, "use_sliding_window") else "sliding_window"
        raise ValueError(f"layer_types has 'sliding_attention': set {fix}")
    return [KINDS[kind] for kind in kinds]


def build(spec: DecoderModel, value: list[str] | None, c: Config, usual: Callable[[Config], list[str]]) -> DecoderModel:
    kinds, stack = layer_kinds(c, usual), spec.decoder
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


def entries(usual: Callable[[Config], list[str]], window: int) -> dict[str, Entry]:
    """Return the entries of layer_types and sliding_window. `usual` returns the published layer_types of a config that
    has none; `window` is the published default of sliding_window."""
    return {
        "layer_types": Entry(None, layer_types, build=functools.partial(build, usual=usual)),
        "sliding_window": Entry(window, sliding_window),
    }


def optional_entries(max_window_layers: int) -> dict[str, Entry]:
    """Return the entries of a family whose windows are optional and only in layers from max_window_layers on."""

    def usual(c: Config) -> list[str]:
        windowed = c.use_sliding_window and c.sliding_window is not None
        return [names[windowed and i >= c.max_window_layers] for i in range(c.num_hidden_layers)]

    names = ("full_attention", "sliding_attention")
    return {
        **entries(usual, 4096),
        "use_sliding_window": Entry(False, lambda spec: "sliding_attention" in layer_types(spec)),
        "max_window_layers": read_only(max_window_layers),
    }
