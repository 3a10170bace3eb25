"""Base class of Stack and of Parts that arrange several Stacks between a model's embedding and head."""

from __future__ import annotations

from typing import ClassVar

from anyformer.parts.base import Embedding
from anyformer.parts.head.base import Head
from anyformer.specs.part import Part


class Backbone(Part):
    """Layers between an embedding and a head."""

    input_aliases: ClassVar[tuple[str, ...]] = ()  # other names of the model's first input

    def out_width(self, width: int) -> int:
        """Return the output width for an input of width `width`."""
        return width

    def check_model(self, embedding: Embedding, head: Head | None) -> None:
        """Raise ValueError if this backbone does not fit the embedding or the head."""
