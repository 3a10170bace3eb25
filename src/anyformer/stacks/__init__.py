"""Sublayers, blocks and stacks, and stacks of other shapes: stages, funnel, Perceiver, two streams, reversible."""

from __future__ import annotations

from anyformer.specs.slots import register_package

register_package(__name__)
