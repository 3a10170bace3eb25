"""Points and the values that a function has there, in turn: what a function is, read off examples [Garg et al. 2022].

B batch, N pairs, T = 2 N tokens, P width of a point, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.base import AbsolutePosition, Embedding
from anyformer.parts.embedding.trajectory import in_turn
from anyformer.parts.position.absolute import add_position
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import Kind, check_shape
from anyformer.runtime.state import State
from anyformer.specs.checks import at_least, chance
from anyformer.specs.part import Site

KINDS = 2  # tokens of a pair: the point, its value


class PairEmbedding(Embedding, sees="itself"):
    """Two tokens a pair (a point, and the value there), each a linear map of its numbers."""

    inputs: ClassVar[tuple[str, ...]] = ("points", "values", "attention_mask")
    input_kinds: ClassVar[Mapping[str, Kind]] = {"points": "floats", "values": "floats"}

    point_width: int
    position: AbsolutePosition | None = None
    dropout: float = 0.0

    def check(self) -> None:
        at_least(self, 1, "point_width")
        chance(self, "dropout")

    @property
    def gives(self) -> tuple[str, ...]:
        return ("a row of tokens", "pairs")

    def row(self, length: int, width: int) -> dict[str, tuple[int, ...]]:
        return {"points": (length, self.point_width), "values": (length,)}

    def vectors(self, length: int) -> int:
        return KINDS * length

    def build(self, site: Site) -> nn.Module:
        return PairEmbeddingModule(self, site)


class PairEmbeddingModule(nn.Module):
    def __init__(self, part: PairEmbedding, site: Site) -> None:
        super().__init__()
        self.part = part
        self.point = nn.Linear(part.point_width, site.width)
        self.value = nn.Linear(1, site.width)
        self.position = part.position.build(site.child("position")) if part.position else None

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        part, points, values = self.part, inputs.get("points"), inputs.get("values")
        if points is None or points.dim() != 3 or points.shape[2] != part.point_width:
            shape = None if points is None else tuple(points.shape)
            raise ValueError(f"points is (batch, pairs, {part.point_width}), got {shape}")
        if values is None:
            raise ValueError("give values beside points: one each, where none is known any number")
        check_shape("values", values, tuple(points.shape[:2]))
        x, ctx = in_turn((self.point(points), self.value(values[..., None])), inputs.get("attention_mask"), state)
        if self.position is not None:
            x = add_position(self.position, x, ctx)
        return (F.dropout(x, part.dropout) if self.training and part.dropout else x), ctx
