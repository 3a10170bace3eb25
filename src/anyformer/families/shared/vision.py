"""Entries and rules that image encoders share: image and patch sizes, learned prefix tokens, and pixel heads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from anyformer.families.base.fields import Absent, Ignored
from anyformer.families.base.template import Class, Config, Entry, entry
from anyformer.parts import EncoderModel, Model, PatchEmbedding, PixelHead, Stages
from anyformer.specs.addresses import value_at
from anyformer.weights.rules import Concat, Rename, Reshape, Rule


def pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def unpair(value: tuple[int, int]) -> int | tuple[int, int]:
    return value[0] if value[0] == value[1] else value


def patches(c: Config) -> int:
    """Return the number of patches of an image."""
    return math.prod(PatchEmbedding(image_size=pair(c.image_size), patch_size=pair(c.patch_size)).grid)


IMAGES: dict[str, Any] = {
    "image_size": entry("embedding.image_size", read=lambda value, c: pair(value), write=unpair),
    "patch_size": entry("embedding.patch_size", "head.patch_size", read=lambda value, c: pair(value), write=unpair),
    "num_channels": ("embedding.channels", "head.channels"),
}


BACKBONE: dict[str, Any] = dict.fromkeys(
    ("out_features", "out_indices", "_out_features", "_out_indices", "stage_names"),
    Ignored(None, "read only by the family's Backbone class"),
)


def square(*addresses: str) -> Entry:
    """An entry for a square: published as one number."""
    return entry(*addresses, read=lambda side, c: (side, side), write=lambda sides: sides[0])


def shows_inputs(spec: Model) -> bool:
    if value_at(spec, "encoder.shows") != "inputs":
        raise Absent
    return True


SHOWS: dict[str, Any] = {
    "tie_last_hidden_states": entry(
        "encoder.shows", default=None, path=shows_inputs, read=lambda value, c: "inputs" if value else "stream"
    ),
}


def head_width(spec: Model) -> int:
    """Written only if it is not width / heads: published classes do not accept null."""
    op = value_at(spec, "encoder.layers.attention.op")
    if op.head_width in (None, spec.width // op.num_heads):
        raise Absent
    return op.head_width


def read_head_width(c: Config) -> int | None:
    """Return the head width if it is not width / heads, else None. Rounded down, as in the published classes."""
    if c.num_attention_heads < 1 or (c.head_dim is None and c.hidden_size < c.num_attention_heads):
        raise ValueError(f"hidden_size {c.hidden_size} is too narrow for {c.num_attention_heads} attention heads")
    width = c.head_dim or c.hidden_size // c.num_attention_heads
    return None if width * c.num_attention_heads == c.hidden_size else width


# -- weights ----------------------------------------------------------------------------------------------------------


def pixels(theirs: str, spec: EncoderModel) -> list[Rule]:
    """Rules of the pixel head, which is published as a 1 x 1 convolution of the last hidden states."""
    width = spec.encoder.out_width(spec.width) if isinstance(spec.encoder, Stages) else spec.width
    kernel = Reshape(f"{theirs}.weight", "head.out.weight", (-1, width, 1, 1))
    return [kernel, Rename(f"{theirs}.bias", "head.out.bias")]


def pixel_class(patch: int, stride: int) -> Class:
    """Return the class that predicts the pixels of masked patches."""
    head = PixelHead(channels=3, stride=stride, patch_size=(patch, patch))
    return Class(head, changes={"embedding.mask_token": True}, weights={"decoder.0": pixels})


def tokens(*names: str) -> Callable[[str, Any], list[Rule]]:
    """Rules of the learned tokens before the patches, which are published as separate tensors."""
    return lambda theirs, spec: [
        Concat([f"{theirs}.{name}" for name in names], "embedding.prefix.0.weight", [1] * len(names), dim=1)
    ]


EMBEDDING_WEIGHTS: dict[str, Any] = {
    "~embeddings.patch_embeddings.projection": "embedding.patch",
    "~embeddings.mask_token": lambda theirs, spec: [Reshape(theirs, "embedding.mask_token", (1, 1, -1))],
    "~embeddings.position_embeddings": lambda theirs, spec: [
        Reshape(theirs, "embedding.position.weight", (1, -1, spec.width))
    ],
}
