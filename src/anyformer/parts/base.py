"""Base classes of slots that Parts in several folders fill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from anyformer.runtime.context import Context
from anyformer.runtime.inputs import Kind
from anyformer.specs.part import Part


class Embedding(Part):
    """Maps the inputs named in `inputs` to the residual stream (B, T, D)."""

    inputs: ClassVar[tuple[str, ...]] = ()
    input_kinds: ClassVar[Mapping[str, Kind]] = {}  # of inputs that are not common (runtime/inputs.py)
    by_position: ClassVar[bool] = False  # can be asked for the token at any position: see OrderedText
    hides: ClassVar[bool] = True  # tokens hidden by attention_mask are visible to no token

    @property
    def gives(self) -> tuple[str, ...]:
        """Names of what it provides for other Parts; see `Part.requires`."""
        return ()

    def row(self, length: int, width: int) -> dict[str, tuple[int, ...]]:
        """The shapes of one row of its inputs, by name, for `length` tokens, samples, frames or time steps."""
        return {self.inputs[0]: (length,)}

    def vectors(self, length: int) -> int:
        """The number of vectors that it makes from such a row."""
        return length


class InputPosition(nn.Module):
    """The module of a scheme that reads more than position numbers."""

    def add(self, x: Tensor, ctx: Context) -> Tensor:
        """x (B, T, D) with its positions added."""
        raise NotImplementedError
