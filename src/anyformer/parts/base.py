"""Base classes of Parts that are defined in several folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn

from anyformer.runtime.context import Context, InputExtra
from anyformer.runtime.inputs import Kind
from anyformer.specs.part import Part, Site, walk


class PartModule(nn.Module):
    """Base class of the modules of Parts: `class MLPModule(PartModule, of=MLP)` makes `MLP.build(site)` return
    `MLPModule(part, site)`, or `MLPModule()` if it has no `__init__` of its own."""

    def __init_subclass__(cls, of: type[Part] | tuple[type[Part], ...] = (), **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)

        def build(part: Part, site: Site) -> nn.Module:
            return cls()

        for kind in of if isinstance(of, tuple) else (of,):
            kind.set_module(cls if cls.__init__ is not nn.Module.__init__ else build)


@runtime_checkable
class ReadsInputs(Protocol):
    """A Part that may read inputs that the embedding does not read."""

    @property
    def extra_inputs(self) -> tuple[type[InputExtra], ...]: ...


def extra_inputs(spec: Part) -> dict[str, type[InputExtra]]:
    """Return input name -> its extra, for all extra inputs that Parts of a description read."""
    parts = (part for _, part in walk(spec) if isinstance(part, ReadsInputs))
    return {extra.name: extra for part in parts for extra in part.extra_inputs}


@runtime_checkable
class HasLength(Protocol):
    """A position scheme with a fixed number of positions; None: no limit."""

    @property
    def length(self) -> int | None: ...


class AbsolutePosition(Part, abstract=True):
    """A position scheme that adds one vector per position to the input. Its module maps positions (1 or B, T) to
    vectors (1 or B, T, D), or is an `InputPosition`."""

    numbered: ClassVar[bool] = True  # its vectors depend only on position numbers
    extra_inputs: ClassVar[tuple[type[InputExtra], ...]] = ()

    @property
    def has_padding_row(self) -> bool:
        """Whether position -1 is valid: the position of padding and of other tokens that do not count."""
        return True

    @property
    def max_length(self) -> int | None:
        """The number of positions: `length` if the scheme has such a field or property, otherwise None."""
        return self.length if isinstance(self, HasLength) else None


class Embedding(Part, abstract=True):
    """Maps the inputs named in `inputs` to the residual stream (B, T, D)."""

    inputs: ClassVar[tuple[str, ...]] = ()
    input_kinds: ClassVar[Mapping[str, Kind]] = {}  # kinds of inputs that are not in `COMMON` (runtime/inputs.py)
    token_labels: ClassVar[tuple[str, ...]] = ()  # inputs (B, T) with a label per token, such as its segment
    by_position: ClassVar[bool] = False  # can predict the token at any given position; see OrderedText
    hides: ClassVar[bool] = True  # whether attention_mask hides tokens from attention

    @property
    def gives(self) -> tuple[str, ...]:
        """Names of features that it provides to other Parts, such as "a grid"; see `Part.requires`."""
        return ()

    @property
    def position(self) -> Part | None:
        """The position scheme that it adds to its output."""
        return None

    @property
    def max_length(self) -> int | None:
        """Number of positions it has vectors for; None: no limit."""
        return self.position.max_length if isinstance(self.position, AbsolutePosition) else None

    @property
    def num_prefix(self) -> int:
        """Number of learned tokens before the input."""
        return 0

    @property
    def padding_token(self) -> int | None:
        """Id of the padding token; None: the description does not define one."""
        return None

    def row(self, length: int, width: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each input for one row of `length` tokens, samples, frames or time steps."""
        return {self.inputs[0]: (length,)}

    def vectors(self, length: int) -> int:
        """Return the number of output vectors for a row of `length`; see `row`."""
        return length


@runtime_checkable
class HasVocabulary(Protocol):
    """A token table, or a head that scores tokens."""

    @property
    def vocab_size(self) -> int: ...


def vocabulary_size(part: object) -> int | None:
    return part.vocab_size if isinstance(part, HasVocabulary) else None


@runtime_checkable
class HasTokens(Protocol):
    """An embedding with a token table."""

    @property
    def tokens(self) -> Any: ...


@runtime_checkable
class HasScores(Protocol):
    """The module of a head that scores tokens."""

    @property
    def scores(self) -> Any: ...


@runtime_checkable
class HasDepth(Protocol):
    """A Part with several layers."""

    @property
    def depth(self) -> int: ...


@runtime_checkable
class HasHeads(Protocol):
    """A Part with attention heads, or with parameters per head."""

    @property
    def num_heads(self) -> int: ...


@runtime_checkable
class HasHeadWidth(Protocol):
    """A Part that may set the width of its heads."""

    @property
    def head_width(self) -> int | None: ...


@runtime_checkable
class KeepsDtype(Protocol):
    """A module with tensors that the loader does not convert to the model's dtype."""

    @property
    def exact(self) -> tuple[str, ...]: ...


@runtime_checkable
class HasPart(Protocol):
    """A module that keeps its description."""

    @property
    def part(self) -> Any: ...


def child(module: object, name: str) -> nn.Module | None:
    """Return the module inside `module` with this name, or None.

    >>> child(nn.ModuleDict({"out": nn.Linear(2, 3)}), "out")
    Linear(in_features=2, out_features=3, bias=True)

    Protocols are only for methods and plain attributes: from Python 3.12 on, `isinstance` with a protocol does not find
    what torch keeps in a module's tables (its children, parameters and buffers).
    """
    found = getattr(module, name, None)
    return found if isinstance(found, nn.Module) else None


class InputPosition(PartModule):
    """The module of a position scheme that needs more than position numbers."""

    def add(self, x: Tensor, ctx: Context) -> Tensor:
        """Return x (B, T, D) with its positions added."""
        raise NotImplementedError
