"""Meanings of `token_type_ids` in a text embedding without segment vectors.

B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from anyformer.parts.base import PartModule
from anyformer.specs.part import Part


class SegmentIds(Part, abstract=True):
    """How a text embedding uses `token_type_ids`. Its module maps x (B, T, D), the ids (B, T) and a function that
    returns token vectors to x."""

    used: ClassVar[bool] = True  # whether the ids change the result


class TokenSegments(SegmentIds, sees="itself"):
    """Segment ids are rows of the token table (GPT-2)."""


class TokenSegmentsModule(PartModule, of=TokenSegments):
    silent = True  # has no value of its own to trace

    def forward(self, x: Tensor, ids: Tensor, vectors: Callable[[Tensor], Tensor]) -> Tensor:
        return x + vectors(ids)


class IgnoredSegments(SegmentIds, sees="itself"):
    """Segment ids are accepted and ignored (DistilBERT)."""

    used: ClassVar[bool] = False


class IgnoredSegmentsModule(PartModule, of=IgnoredSegments):
    silent = True

    def forward(self, x: Tensor, ids: Tensor, vectors: Callable[[Tensor], Tensor]) -> Tensor:
        return x
