"""Published `layer_types`: some layers have a sliding window, the others do not (Qwen2, Gemma 2, ModernBERT)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.families.base.fields import Absent
from anyformer.families.base.template import Config, Entry, entry, read_only
from anyformer.families.shared.heads import causal, decoder_mask, window_size
from anyformer.parts import DecoderModel, Mask, Model, Stack, Window
from anyformer.specs.addresses import edit, find, value_at
from anyformer.specs.messages import quote

KINDS = {"sliding_attention": "sliding", "full_attention": "full"}
NAMES = {ours: theirs for theirs, ours in KINDS.items()}
MASK = "decoder.layers.{}attention.op.mask"

IsWindowed = Callable[[Config, int], bool]  # whether a layer has a window if layer_types is not given


def layer_kinds(c: Config, is_windowed: IsWindowed) -> list[str]:
    """Return the kind of each layer, "sliding" or "full"."""
    types = c.layer_types
    if types is None:
        types = [NAMES["sliding" if is_windowed(c, i) else "full"] for i in range(c.num_hidden_layers)]
    if len(types) != c.num_hidden_layers or not set(types) <= set(KINDS):
        raise ValueError(f"layer_types={quote(types, 60)}: each layer needs one of {', '.join(map(repr, KINDS))}")
    return [KINDS[each] for each in types]


def layer_types(stack: Stack) -> list[str]:
    pattern = stack.pattern or ("full",)
    return [NAMES[pattern[i % len(pattern)]] for i in range(stack.depth)]


# -- templates with both kinds of layers -------------------------------------------------------------------------------


def pattern(name: str, is_windowed: IsWindowed) -> Entry:
    """`layer_types`, for a stack `name` whose layers are {"sliding": ..., "full": ...} in the published pattern."""

    def build(spec: Model, value: Any, c: Config) -> Model:
        stack, kinds = getattr(spec, name), layer_kinds(c, is_windowed)
        if [KINDS[each] for each in layer_types(stack)] == kinds:
            return spec
        layers = {kind: stack.layers[kind] for kind in stack.layers if kind in kinds}
        return spec.replace(**{name: stack.replace(layers=layers, pattern=tuple(kinds))})

    return Entry(None, lambda spec: layer_types(getattr(spec, name)), build=build)


def decoder_entries(is_windowed: IsWindowed) -> dict[str, Entry]:
    """Return the entries of a decoder whose template has both kinds of layers."""

    def window(size: int | None, c: Config) -> Mask:
        if size is None and "sliding" in layer_kinds(c, is_windowed):
            raise ValueError("layer_types has 'sliding_attention': set sliding_window")
        return decoder_mask(size, c.is_causal)

    is_causal = causal(lambda spec: next(find(spec, MASK.format("")))[1]).path
    return {
        "layer_types": pattern("decoder", is_windowed),
        "sliding_window": entry(MASK.format("sliding."), read=window, write=window_size),
        "is_causal": entry(
            MASK.format("full."), default=True, path=is_causal, read=lambda value, c: decoder_mask(None, value)
        ),
    }


def window_around(address: str) -> Entry:
    """An entry for the width of a window that is half before and half after the query, at the address of a mask."""
    return entry(
        address,
        read=lambda width, c: Window(size=width // 2 + 1, ahead=True),
        write=lambda mask: 2 * (mask.size - 1),
    )


# -- templates with one kind of layers (Qwen2) -------------------------------------------------------------------------


def after_full_layers(c: Config, layer: int) -> bool:
    return c.use_sliding_window and c.sliding_window is not None and layer >= c.max_window_layers


def build(spec: DecoderModel, value: Any, c: Config) -> DecoderModel:
    kinds, stack = layer_kinds(c, after_full_layers), spec.decoder
    if "sliding" not in kinds:
        return spec
    if not c.use_sliding_window or c.sliding_window is None:
        raise ValueError("layer_types has 'sliding_attention': set use_sliding_window=True and sliding_window")
    windowed = edit(stack.layers, {"attention.op.mask": decoder_mask(c.sliding_window, c.is_causal)})
    blocks = {kind: block for kind, block in (("full", stack.layers), ("sliding", windowed)) if kind in kinds}
    return spec.replace(decoder=stack.replace(layers=blocks, pattern=tuple(kinds)))


def sliding_window(spec: DecoderModel) -> int | None:
    if "sliding_attention" not in layer_types(spec.decoder):
        raise Absent
    return window_size(value_at(spec, MASK.format("sliding.")))


def entries(max_window_layers: int) -> dict[str, Entry]:
    return {
        "layer_types": Entry(None, lambda spec: layer_types(spec.decoder), build=build),
        "use_sliding_window": Entry(False, lambda spec: "sliding_attention" in layer_types(spec.decoder)),
        "sliding_window": Entry(4096, sliding_window),
        "max_window_layers": read_only(max_window_layers),
    }
