"""Ranges of fields, and modules that name their Part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import pytest
from torch import Tensor, nn

from anyformer.parts.attention.attention import Attention, AttentionModule
from anyformer.parts.base import PartModule
from anyformer.parts.norm import Norm
from anyformer.parts.op import Op
from anyformer.runtime.context import Context
from anyformer.specs.addresses import with_values
from anyformer.specs.field_types import (
    QKVO,
    Chance,
    Count,
    Even,
    Natural,
    NonNegative,
    Odd,
    OneOrMore,
    Positive,
    Range,
    TwoOrMore,
    ranges,
)
from anyformer.specs.part import Part, Site, Table, hints
from anyformer.specs.slots import fields_of
from anyformer.train.run import every_kind
from anyformer.train.run_schema import object_schema


@pytest.fixture(autouse=True)
def forget_kinds() -> Iterator[None]:
    every_kind()  # the kinds of the library must stay: modules are imported only once
    before = {*Part.kinds}
    yield
    for name in Part.kinds.keys() - before:
        del Part.kinds[name]


class Ranged(Part):
    count: Count = 1
    natural: Natural | None = None
    two: TwoOrMore = 2
    chance: Chance = 0.0
    positive: Positive = 1.0
    least: NonNegative = 0.0
    one: OneOrMore = 1.0
    both: Annotated[int, Range(at_least=1, at_most=2**24)] | None = None
    sizes: tuple[Count, ...] = ()
    table: Mapping[str, Positive] = Table()
    bias: QKVO = "qkvo"
    odd: Odd = 3
    evens: tuple[Even, ...] = (2,)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("count", 0, "count is 0; it must be at least 1"),
        ("natural", -1, "natural is -1; it must be at least 0"),
        ("two", 1, "two is 1; it must be at least 2"),
        ("chance", 1.0, r"chance is 1.0; it must be in \[0, 1\)"),
        ("chance", -0.1, r"chance is -0.1; it must be in \[0, 1\)"),
        ("positive", 0.0, "positive is 0.0; it must be above 0"),
        ("least", -1e-9, "least is -1e-09; it must be at least 0"),
        ("one", 0.5, "one is 0.5; it must be at least 1"),
        ("both", 2**24 + 1, "both is 16,777,217; it must be at least 1 and at most 16,777,216"),
        ("sizes", (3, 0), r"sizes.1 is 0; it must be at least 1"),
        ("odd", 4, "odd is 4; it must be odd and at least 1"),
        ("odd", -1, "odd is -1; it must be odd and at least 1"),
        ("evens", (2, 5), "evens.1 is 5; it must be even and at least 2"),
        ("bias", "qx", "bias is 'qx'; use only letters of 'qkvo'"),
        ("table", {"a": 1.0, "b": 0.0}, r"table.b is 0.0; it must be above 0"),
    ],
)
def test_out_of_range(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"^Ranged.{message}$"):
        Ranged(**{field: value})
    with pytest.raises(ValueError, match=f"^{message}$"):  # after all changes, by address
        with_values(Ranged(), {field: value})


def test_limits_are_valid() -> None:
    part = Ranged(natural=0, chance=0.999999, positive=5e-324, both=2**24, sizes=[1], table={"a": 1})
    assert part.natural == 0 and part.table["a"] == 1.0


def test_a_subclass_inherits_ranges_and_may_change_its_default() -> None:
    class RangedChild(Ranged):
        count: Count = 4

    with pytest.raises(ValueError, match=r"^RangedChild.two is 0"):
        RangedChild(two=0)
    with pytest.raises(ValueError, match=r"^RangedChild.count is 0"):
        RangedChild(count=0)


def test_every_kind_keeps_the_ranges_of_its_bases() -> None:
    for kind in every_kind().values():
        own = {name for name, *_ in ranges(kind)}
        bases: list[Any] = [base for base in kind.__mro__[1:] if issubclass(base, Part) and base is not Part]
        for base in bases:
            lost = {name for name, *_ in ranges(base)} - own
            assert not lost, f"{kind.__name__} declares {lost} with a type without the range in {base.__name__}"


def test_types_are_plain_for_all_other_code() -> None:
    assert hints(Ranged)["count"] is int and hints(Ranged)["natural"] == int | None


def test_ranges_are_shown() -> None:
    types = {field["name"]: field["type"] for field in fields_of(Ranged)}
    assert types["natural"] == "int (at least 0) | None" and types["chance"] == "float (in [0, 1))"
    properties = object_schema(Ranged, {})["properties"]
    assert properties["count"] == {"type": "integer", "minimum": 1, "default": 1}
    assert properties["chance"] == {"type": "number", "minimum": 0, "exclusiveMaximum": 1, "default": 0.0}
    assert properties["positive"]["exclusiveMinimum"] == 0
    assert properties["natural"]["anyOf"] == [{"type": "integer", "minimum": 0}, {"type": "null"}]
    assert properties["sizes"]["items"] == {"type": "integer", "minimum": 1}
    assert properties["odd"] == {"type": "integer", "minimum": 1, "not": {"multipleOf": 2}, "default": 3}
    assert properties["bias"] == {"type": "string", "pattern": "^[qkvo]*$", "default": "qkvo"}
    assert types["bias"] == "str (letters of 'qkvo')" and types["odd"] == "int (odd and at least 1)"


# -- modules -----------------------------------------------------------------------------------------------------------


def test_a_module_names_its_part() -> None:
    class Times(Op, sees="itself"):
        factor: Positive = 2.0

    class TimesModule(PartModule, of=Times):
        def __init__(self, part: Times, site: Site) -> None:
            super().__init__()
            self.factor, self.width = part.factor, site.width

        def forward(self, x: Tensor, ctx: Context) -> Tensor:
            return x * self.factor

    module = Times(factor=3.0).build(Site(width=8))
    assert type(module) is TimesModule and (module.factor, module.width) == (3.0, 8)
    assert Times().sees == "itself"


def test_a_new_module_needs_a_new_sees() -> None:
    class Mixed(Attention):  # its module may mix tokens that Attention does not
        pass

    assert Mixed(num_heads=2).sees is not None

    class MixedModule(AttentionModule, of=Mixed):
        pass

    assert Mixed(num_heads=2).sees is None and Attention(num_heads=2).sees is not None
    assert type(Mixed(num_heads=2).build(Site(width=4))) is MixedModule
    assert type(Attention(num_heads=2).build(Site(width=4))) is AttentionModule


def test_a_part_has_one_module() -> None:
    class Built(Op, sees="itself"):
        def build(self, site: Site) -> nn.Module:
            return nn.Identity()

    with pytest.raises(TypeError, match="Built defines `build`"):

        class BuiltModule(PartModule, of=Built):
            pass


def test_a_kind_without_a_module() -> None:
    with pytest.raises(TypeError, match="Norm has no module: no PartModule is `of=Norm`"):
        Norm().build(Site(width=4))
