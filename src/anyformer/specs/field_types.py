"""Types of fields with a range: `depth: Count`, `dropout: Chance`, `scale: Positive | None`, `bias: QKVO`.

Type checkers see int, float or str. Parts check the range when they are made, and the JSON schema and `anyformer parts`
show it. In a tuple or a table, it holds for every number. For other limits write `Annotated[int, Range(at_least=3)]`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from anyformer.specs.frozen import Table
from anyformer.specs.messages import quote

NUMBERS = frozenset((int, float))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Range:
    """Limits of a number. None: no limit."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    parity: Literal["odd", "even"] | None = None

    @functools.cached_property
    def low(self) -> float:
        """The smallest number in the range, so that one comparison is enough."""
        return math.nextafter(self.above, math.inf) if self.above is not None else _or(self.at_least, -math.inf)

    @functools.cached_property
    def high(self) -> float:
        return math.nextafter(self.below, -math.inf) if self.below is not None else _or(self.at_most, math.inf)

    def __str__(self) -> str:
        if self.at_least is not None and self.below is not None:
            return f"in [{self.at_least}, {self.below})"
        limits = {"at least": self.at_least, "above": self.above, "at most": self.at_most, "below": self.below}
        words = [f"{name} {limit:,}" for name, limit in limits.items() if limit is not None]
        return " and ".join([self.parity, *words] if self.parity else words)

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high and (self.parity is None or value % 2 == (self.parity == "odd"))

    def check(self, value: Any, name: str) -> None:
        """Raise ValueError if `value`, or a number in a tuple or a table, is out of range. Skip other values."""
        if isinstance(value, (tuple, Table)):
            for key, item in value.items() if isinstance(value, Table) else enumerate(value):
                self.check(item, f"{name}.{key}")
        elif type(value) in NUMBERS and not self.contains(value):
            raise ValueError(f"{name} is {value if value < self.high else f'{value:,}'}; it must be {self}")

    def schema(self) -> dict[str, Any]:
        """Return the limits as keywords of a JSON schema."""
        limits = {
            "minimum": self.at_least,
            "exclusiveMinimum": self.above,
            "maximum": self.at_most,
            "exclusiveMaximum": self.below,
        }
        parities: dict[Any, dict[str, Any]] = {"odd": {"not": {"multipleOf": 2}}, "even": {"multipleOf": 2}}
        given = {keyword: limit for keyword, limit in limits.items() if limit is not None}
        return given | parities.get(self.parity, {})


@dataclasses.dataclass(frozen=True)
class Letters:
    """The letters that a text may contain."""

    of: str

    def __str__(self) -> str:
        return f"letters of {self.of!r}"

    def check(self, value: Any, name: str) -> None:
        if set(value) - set(self.of):
            raise ValueError(f"{name} is {quote(value)}; use only {self}")

    def schema(self) -> dict[str, str]:
        return {"pattern": f"^[{self.of}]*$"}


Limits = Range | Letters

Count = Annotated[int, Range(at_least=1)]
Natural = Annotated[int, Range(at_least=0)]
TwoOrMore = Annotated[int, Range(at_least=2)]
Odd = Annotated[int, Range(at_least=1, parity="odd")]  # such as the size of a centred kernel
Even = Annotated[int, Range(at_least=2, parity="even")]
Chance = Annotated[float, Range(at_least=0, below=1)]  # such as a dropout rate
Fraction = Annotated[float, Range(at_least=0, at_most=1)]
ProperFraction = Annotated[float, Range(above=0, below=1)]
Positive = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(at_least=0)]
OneOrMore = Annotated[float, Range(at_least=1)]
QKVO = Annotated[str, Letters("qkvo")]  # projections of attention, such as those with a bias


def _or(limit: float | None, default: float) -> float:
    return default if limit is None else limit


def _annotated_hints(cls: Any) -> dict[str, Any]:
    """Return field name -> type with its range, for the fields of a Part."""
    types = typing.get_type_hints(cls, include_extras=True)
    return {field.name: types[field.name] for field in dataclasses.fields(cls)}


def _ranges(cls: Any) -> tuple[tuple[str, Limits, float, float], ...]:
    """Return (field, range, its lowest and its highest number) for the fields of a Part that have a range. No number is
    between the two if limits need more than a comparison."""
    fields = ((name, next(ranges_in(hint), None)) for name, hint in annotated_hints(cls).items())
    return tuple(
        (name, limits, limits.low, limits.high)
        if isinstance(limits, Range) and limits.parity is None
        else (name, limits, math.inf, -math.inf)
        for name, limits in fields
        if limits is not None
    )


def ranges_in(hint: Any) -> Iterator[Limits]:
    """Yield the ranges in a type, such as `Count | None`."""
    for inner in typing.get_args(hint):
        if isinstance(inner, Limits):
            yield inner
        yield from ranges_in(inner)


annotated_hints: Callable[[Any], dict[str, Any]] = functools.cache(_annotated_hints)
ranges: Callable[[Any], tuple[tuple[str, Limits, float, float], ...]] = functools.cache(_ranges)


def check_ranges(part: Any) -> None:
    """Raise ValueError if a field of a Part is out of its range."""
    for name, limits, low, high in ranges(type(part)):
        value = getattr(part, name)
        if value is not None and not (type(value) in NUMBERS and low <= value <= high):
            limits.check(value, f"{type(part).__name__}.{name}")


def type_name(hint: Any) -> str:
    """Return a type as source code."""
    if isinstance(hint, type) and not typing.get_args(hint):
        return "None" if hint is type(None) else hint.__name__
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(type_name, inner))
    if origin is typing.Annotated:
        return f"{type_name(inner[0])} ({', '.join(str(limits) for limits in inner[1:] if isinstance(limits, Limits))})"
    if origin is typing.Literal:
        return " | ".join(map(repr, inner))
    if inner:
        return f"{getattr(origin, '__name__', origin)}[{', '.join('...' if i is ... else type_name(i) for i in inner)}]"
    return str(hint).removeprefix("typing.")
