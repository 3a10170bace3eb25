"""Text for attention that compares the segments of query and key (position/segments.py)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from anyformer.parts.embedding.text import TextEmbedding, TextEmbeddingModule
from anyformer.parts.position.segments import Segments
from anyformer.runtime.context import Context
from anyformer.runtime.state import State
from anyformer.specs.field_types import Natural
from anyformer.specs.part import Site


class SegmentedText(TextEmbedding, sees="past"):
    """Text whose segments have no vectors: attention compares them instead. Segments are not cached."""

    segments: Natural = 3

    def build(self, site: Site) -> nn.Module:
        return SegmentedTextModule(self.replace(segments=0), site)


class SegmentedTextModule(TextEmbeddingModule):
    def state_spec(self) -> None:
        return None

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        x, ctx = super().forward({**inputs, "token_type_ids": None}, state)
        kinds = inputs.get("token_type_ids")
        return x, ctx if kinds is None else ctx.replace(Segments(kinds))
