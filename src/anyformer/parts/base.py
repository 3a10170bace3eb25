"""Base classes of slots that Parts in several folders fill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn

from anyformer.runtime.context import Context
from anyformer.runtime.inputs import Kind
from anyformer.specs.part import Part


class AbsolutePosition(Part):
    """A vector for each position, added to the input. The module maps positions (1 or B, T) to (1 or B, T, D), or is an
    `InputPosition`."""

    numbered: ClassVar[bool] = True  # it reads only position numbers

    @property
    def has_padding_row(self) -> bool:
        """Whether position -1, that of tokens which take up no position, is valid."""
        return True

    @property
    def max_length(self) -> int | None:
        """The field or property `length` of kinds that have one: the number of positions."""
        return getattr(self, "length", None)


class Embedding(Part):
    """Maps the inputs named in `inputs` to the residual stream (B, T, D)."""

    inputs: ClassVar[tuple[str, ...]] = ()
    input_kinds: ClassVar[Mapping[str, Kind]] = {}  # of inputs that are not common (runtime/inputs.py)
    token_labels: ClassVar[tuple[str, ...]] = ()  # inputs (B, T) that label each token: its segment, its language
    by_position: ClassVar[bool] = False  # can be asked for the token at any position: see OrderedText
    hides: ClassVar[bool] = True  # tokens hidden by attention_mask are visible to no token

    @property
    def gives(self) -> tuple[str, ...]:
        """Names of what it provides for other Parts; see `Part.requires`."""
        return ()

    @property
    def position(self) -> Part | None:
        """Position vectors that it adds."""
        return None

    @property
    def max_length(self) -> int | None:
        """Number of positions it has vectors for; None: no limit."""
        return self.position.max_length if isinstance(self.position, AbsolutePosition) else None

    @property
    def prefix(self) -> int:
        """Number of learned tokens before the input."""
        return 0

    @property
    def padding_token(self) -> int | None:
        """Id of the token that fills up short texts, if the description gives it."""
        return None

    def row(self, length: int, width: int) -> dict[str, tuple[int, ...]]:
        """The shapes of one row of its inputs, by name, for `length` tokens, samples, frames or time steps."""
        return {self.inputs[0]: (length,)}

    def vectors(self, length: int) -> int:
        """The number of vectors that it makes from such a row."""
        return length


@runtime_checkable
class HasVocabulary(Protocol):
    """A token table, or a head that scores tokens."""

    @property
    def vocab_size(self) -> int: ...


@runtime_checkable
class HasDepth(Protocol):
    """A Part with several layers."""

    @property
    def depth(self) -> int: ...


@runtime_checkable
class HasHeads(Protocol):
    """A Part with several attention heads, or with parameters for each of them."""

    @property
    def num_heads(self) -> int: ...


class InputPosition(nn.Module):
    """The module of a scheme that reads more than position numbers."""

    def add(self, x: Tensor, ctx: Context) -> Tensor:
        """x (B, T, D) with its positions added."""
        raise NotImplementedError
