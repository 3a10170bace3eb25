"""What a residual step goes around."""

from __future__ import annotations

from typing import ClassVar

from anyformer.part import Part


class Op(Part):
    """A mixer or a feed-forward: its module maps x (B, T, D) and the `Context` of the pass to (B, T, D)."""

    open_slot: ClassVar[bool] = True
