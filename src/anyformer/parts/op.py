"""What a residual step goes around."""

from __future__ import annotations

from anyformer.part import Part


class Op(Part):
    """A mixer or a feed-forward: its module maps x (B, T, D) and the `Context` of the pass to (B, T, D)."""
