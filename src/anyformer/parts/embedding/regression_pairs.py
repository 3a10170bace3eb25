"""In-context regression: points and a function's values at these points, interleaved [Garg et al. 2022].

B batch, N pairs, T = 2 N tokens, P width of a point, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.base import AbsolutePosition, Embedding, PartModule
from anyformer.parts.embedding.trajectory import in_turn
from anyformer.parts.position.absolute import add_position
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import Kind, check_shape
from anyformer.runtime.state import State
from anyformer.specs.field_types import Chance, Count
from anyformer.specs.part import Site

KINDS = 2  # tokens per pair: the point and its value


class PairEmbedding(Embedding, sees="itself"):
    """Two tokens per pair, a point and its value, each a linear map of its numbers."""

    inputs: ClassVar[tuple[str, ...]] = ("points", "values", "attention_mask")
    input_kinds: ClassVar[Mapping[str, Kind]] = {"points": "floats", "values": "floats"}
    gives: ClassVar[tuple[str, ...]] = ("a row of tokens", "pairs")

    point_width: Count
    position: AbsolutePosition | None = None
    dropout: Chance = 0.0

    def row(self, length: int, width: int) -> dict[str, tuple[int, ...]]:
        return {"points": (length, self.point_width), "values": (length,)}

    def vectors(self, length: int) -> int:
        return KINDS * length


class PairEmbeddingModule(PartModule, of=PairEmbedding):
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
            raise ValueError(f"points must be (batch, pairs, {part.point_width}), got {shape}")
        if values is None:
            raise ValueError("values are missing: give one per point (any number if the value is unknown)")
        check_shape("values", values, tuple(points.shape[:2]))
        x, ctx = in_turn((self.point(points), self.value(values[..., None])), inputs.get("attention_mask"), state)
        if self.position is not None:
            x = add_position(self.position, x, ctx)
        return (F.dropout(x, part.dropout) if self.training and part.dropout else x), ctx
