"""Base class of what a model has between its embedding and its head: a Stack, or a Part that arranges several Stacks.

The module maps x (B, T, D) and its `Context` to a new x and context. It has `collect_outputs(seen)`, which returns the
traced outputs by name ("hidden_states", ...).
"""

from __future__ import annotations

from typing import ClassVar

from anyformer.parts.base import Embedding
from anyformer.parts.head.base import Head
from anyformer.specs.part import Part


class Backbone(Part, abstract=True):
    """Layers between an embedding and a head."""

    feeds_decoder: ClassVar[bool] = True  # whether cross-attention can read the output
    input_aliases: ClassVar[tuple[str, ...]] = ()  # other names of the model's first input

    def out_width(self, width: int) -> int:
        """Return the output width for an input of width `width`."""
        return width

    def check_model(self, embedding: Embedding, head: Head | None) -> None:
        """Raise ValueError if this backbone does not fit the embedding or the head."""
