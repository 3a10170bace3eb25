"""The base class of position-wise feed-forward layers. F inner width, D width."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from anyformer.parts.op import Op
from anyformer.specs.field_types import Chance, Count


class FeedForward(Op, abstract=True):
    """Two products with a pointwise function between them: down(inner(up(x))), or down(inner(gate(x), up(x))) if
    `gated`. A mixture of experts accepts every such kind as its expert."""

    open_slot: ClassVar[bool] = False  # experts call `inner`, so other kinds of Part do not fit
    gated: ClassVar[bool] = False  # the first product has 2 F outputs: the gates and the values

    width: Count  # F, inner width
    bias: bool = True
    dropout: Chance = 0.0  # on the inner activations

    def inner(self, *inputs: Tensor) -> Tensor:
        """Return the inner activations (..., F), given the first product (..., F); with gates: (gate, up)."""
        raise NotImplementedError
