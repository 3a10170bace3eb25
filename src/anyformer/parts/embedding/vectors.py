"""Inputs that already are vectors: measurements, features of another model, torch.nn.Transformer's arguments."""

from __future__ import annotations

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from anyformer.parts.base import AbsolutePosition, Embedding, PartModule
from anyformer.parts.embedding.text import text_context
from anyformer.parts.position.absolute import add_position
from anyformer.runtime.context import Context
from anyformer.runtime.state import State
from anyformer.specs.part import Site


class Vectors(Embedding, sees="itself"):
    """`inputs_embeds` (B, T, D), unchanged except for `position` and dropout."""

    inputs: ClassVar[tuple[str, ...]] = ("inputs_embeds", "attention_mask", "position_ids", "document_ids")
    gives: ClassVar[tuple[str, ...]] = ("a row of tokens",)

    position: AbsolutePosition | None = None
    dropout: float = 0.0

    def row(self, length: int, width: int) -> dict[str, tuple[int, ...]]:
        return {"inputs_embeds": (length, width)}


class VectorsModule(PartModule, of=Vectors):
    def __init__(self, part: Vectors, site: Site) -> None:
        super().__init__()
        self.width, self.dropout = site.width, part.dropout
        self.position = part.position.build(site.child("position")) if part.position else None

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        x = inputs.get("inputs_embeds")
        if x is None or x.dim() != 3 or x.shape[-1] != self.width:
            shape = None if x is None else tuple(x.shape)
            raise ValueError(f"inputs_embeds must be (batch, tokens, {self.width}), got {shape}")
        ctx = text_context(x, inputs, state)
        if self.position is not None:
            x = add_position(self.position, x, ctx)
        return (F.dropout(x, self.dropout) if self.training and self.dropout else x), ctx
