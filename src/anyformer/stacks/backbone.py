"""What a model may have between its embedding and its head: one Stack, or another arrangement of several."""

from __future__ import annotations

from typing import ClassVar

from anyformer.parts.base import Embedding
from anyformer.parts.head.base import Head
from anyformer.specs.part import Part


class Backbone(Part):
    """Layers between an embedding and a head."""

    input_aliases: ClassVar[tuple[str, ...]] = ()  # names that the model's first input goes by too

    def out_width(self, width: int) -> int:
        """The width of the stream that leaves, where one of `width` comes."""
        return width

    def check_model(self, embedding: Embedding, head: Head | None) -> None:
        """ValueError where it does not fit the embedding before it or the head behind it."""
