"""A residual step with the same drop rate in every layer."""

from __future__ import annotations

from anyformer.stacks.sublayer import Sublayer


class ConstantDropSublayer(Sublayer, called=("constant stochastic depth",)):
    """A residual step whose `drop_path` is the drop rate of every layer (DINOv2)."""

    def drop_rate(self, layer: int, depth: int) -> float:
        return self.drop_path
