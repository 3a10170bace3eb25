"""Descriptions: frozen Parts and their dotted addresses.

A Part describes one thing, and its `build` returns its torch module. Parts nest, and the dotted path of a Part in its
description is the dotted name of its module, so weights, overrides, hooks and error messages use the same addresses:

>>> from anyformer.parts.norm import LayerNorm
>>> norm = LayerNorm(eps=1e-6)
>>> norm.replace(bias=False)
LayerNorm(eps=1e-06, bias=False)
"""

from __future__ import annotations

import contextvars
import dataclasses
import difflib
import functools
import html
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal, Self, TypeVar, dataclass_transform

from anyformer.specs.field_types import annotated_hints, check_ranges, type_name
from anyformer.specs.frozen import Table as Table
from anyformer.specs.frozen import freeze as freeze
from anyformer.specs.frozen import is_flat as is_flat
from anyformer.specs.frozen import thaw as thaw
from anyformer.specs.messages import nearest, plain, quote
from anyformer.specs.services import service

Sees = Literal["itself", "past", "all"]  # the tokens of a text that a token's result depends on
REACH = ("itself", "past", None, "all")  # from the fewest tokens to the most; None: not declared


@dataclasses.dataclass(frozen=True)
class Site:
    """Where a Part is being built: the width, layer and address at this point of the model."""

    width: int  # D, width of the residual stream at this point
    layer: int = 0  # index of this block among `depth` blocks, counted across all stages
    depth: int = 1
    address: str = ""  # dotted name of the module, from the model down

    def child(self, name: str, **changes: Any) -> Site:
        address = f"{self.address}.{name}" if self.address else name
        return dataclasses.replace(self, address=address, **changes)

    def layer_of(self, block: Part) -> Any:
        """Build one layer of a Stack. A subclass for counting may return the same module for equal layers."""
        return block.build(self)


@dataclasses.dataclass(frozen=True)
class LayerSharing:
    """All layers of a Stack use weights or states of the first (Linformer, Luna, DeBERTa)."""

    off: str  # the setting that turns it off
    conflicts: tuple[str, ...]  # fields of the Stack that cannot be used with it
    form: tuple[object, ...] = ()  # values that must be the same in all layers


P = TypeVar("P", bound="Part")
ANY = "*"  # stands for the field names of a Part with open fields
CHECKS_DEFERRED: contextvars.ContextVar[bool] = contextvars.ContextVar("together", default=False)  # see deferred_checks


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
class Part:
    """Base class of descriptions. Declaring a subclass makes it a frozen dataclass and registers it as a JSON kind."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    kinds: ClassVar[dict[str, type[Part]]] = {}
    open_fields: ClassVar[bool] = False  # each instance chooses its field names (Block), not the class
    open_slot: ClassVar[bool] = False  # slots of this type also accept Parts of other packages
    declared_sees: ClassVar[Sees | None] = None  # `sees` as the class declares it: `class Shift(Part, sees="past")`
    called: ClassVar[tuple[str, ...]] = ()  # aliases, with the fields they imply: "SwiGLU (activation='silu')"
    is_abstract: ClassVar[bool] = True  # only a base class of kinds: `class Norm(Part, abstract=True)`

    def __init_subclass__(
        cls, sees: Sees | None = None, called: tuple[str, ...] = (), abstract: bool = False, **kwargs: Any
    ) -> None:
        super().__init_subclass__(**kwargs)
        cls.called, cls.is_abstract = called, abstract
        if sees is not None or {"build", "make", "allows"} & vars(cls).keys():  # a new module needs a new `sees`
            cls.declared_sees = sees
        for name in inspect.get_annotations(cls).keys() - vars(cls).keys():
            if isinstance(getattr(cls, name, None), property):  # an inherited property is not the field's default
                setattr(cls, name, dataclasses.MISSING)
        own = cls.open_fields
        dataclasses.dataclass(frozen=True, kw_only=True, repr=False, init=not own, eq=not own)(cls)
        other = cls.kinds.get(cls.__name__, cls).__module__
        if other != cls.__module__:  # the name in a file would be ambiguous
            raise ValueError(f"two kinds of Part are called {cls.__name__}, in {other} and in {cls.__module__}")
        cls.kinds[cls.__name__] = cls

    def __new__(cls, *values: Any, **fields: Any) -> Self:
        unknown = () if cls.open_fields else (name for name in fields if name not in hints(cls))
        for name in unknown:
            raise ValueError(f"{cls.__name__} has no field {quote(name)}; {nearest(name, hints(cls))}")
        if values and len(values) > sum(not field.kw_only for field in dataclasses.fields(cls)):
            name = next(iter(hints(cls)), "name")
            raise ValueError(f"{cls.__name__} takes its fields by name: {cls.__name__}({name}={values[0]!r:.80}, ...)")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, hint in hints(type(self)).items():
            given, where = getattr(self, name), f"{type(self).__name__}.{name}"
            try:
                value = conform(given, hint, where)
            except ValueError:
                if not slot_types(hint):
                    raise
                service("kinds")()  # import all kinds, so that the message can suggest any of them
                value = conform(given, hint, where)
            object.__setattr__(self, name, value)
        if not CHECKS_DEFERRED.get():
            self.check_fields()

    def check_fields(self) -> None:
        """Raise ValueError if a field is out of its range (see field_types.py) or contradicts another field."""
        check_ranges(self)
        self.check()

    def check(self) -> None:
        """Raise ValueError if fields contradict each other."""

    def build(self, site: Any) -> Any:
        """Build the torch module of this Part at a `Site` (width, layer, address)."""
        raise TypeError(f"{type(self).__name__} has no module: no PartModule is `of={type(self).__name__}`")

    @classmethod
    def set_module(cls, module: Callable[[Any, Any], Any]) -> None:
        """Make `build` return `module(part, site)`. The class statement of a PartModule calls it."""
        if "build" in vars(cls) and cls.build.__module__ != __name__:  # a module may be defined again in a notebook
            raise TypeError(f"{cls.__name__} defines `build`, so no module can be `of={cls.__name__}`")

        def build(self: Part, site: Any) -> Any:
            return module(self, site)

        cls.build = build  # type: ignore[method-assign]
        cls.declared_sees = vars(cls).get("declared_sees")  # a new module needs a new `sees`

    @classmethod
    def upgrade(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Return the present fields, as JSON data, of a Part that an earlier version saved. A different kind may
        replace it: then the result has a "kind". Only renamed kinds and fields are in `codec.ALIASES`."""
        return data

    # -- what a token sees ----------------------------------------------------------------------------------------

    @functools.cached_property
    def sees(self) -> Sees | None:
        """The tokens that a token's result depends on, including the effect of inner Parts: only itself, the past too,
        or all. None if a kind does not declare it; then left-to-right models refuse the Part."""
        return None if self.declared_sees is None else self.reaches()

    def reaches(self) -> Sees | None:
        """Compute `sees`: as the class declares, or more if an inner Part sees more. Override it if fields matter."""
        return farthest(self.declared_sees, *(part for _, part in parts_in(self)))

    @property
    def causal_alternative(self) -> str:
        """If this Part sees later tokens: the most similar one that does not."""
        return ""

    # -- capabilities of any Part; a kind overrides them by a property, a class variable or a field -------------------

    routes: ClassVar[bool] = False  # routes tokens to experts
    length_dependent: ClassVar[bool] = False  # the length of the text changes the result of every token

    @property
    def requires(self) -> tuple[str, ...]:
        """Requirements that the embedding must meet, such as "a grid"; see `Embedding.gives`."""
        return ()

    @property
    def bias_heads(self) -> int | None:
        """Number of heads that add the position bias shared by a Stack's layers to their scores; None: no bias."""
        return None

    @property
    def reads_memory(self) -> bool:
        """Whether it attends to the memory (cross-attention)."""
        return False

    @property
    def memory_width(self) -> int | None:
        """Width of that memory, if it differs from the model's."""
        return None

    @property
    def layer_sharing(self) -> LayerSharing | None:
        """How the layers of a Stack share weights or states of the first layer; None: they do not."""
        return None

    def out_width(self, width: int) -> int:
        """Return the output width for an input of this width."""
        return width

    @classmethod
    def field_types(cls) -> dict[str, Any]:
        """Return field name -> type; the name is `*` if fields may have any name."""
        return hints(cls)

    def sizes_left_behind(self, before: Part, path: str, changes: Mapping[str, Any]) -> str:
        """After an override at `path`, return one line about sizes that were chosen for the old value in `before` and
        are unchanged; "" if there are none."""
        return ""

    # -- fields, by name ------------------------------------------------------------------------------------------

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield (name, value) of every field, in the order used by addresses, JSON and trees."""
        for name in hints(type(self)):
            yield name, getattr(self, name)

    @functools.cached_property
    def subtree(self) -> tuple[tuple[str, Part], ...]:
        """(address, Part) of this Part and every Part in it, cached for `walk`."""
        return ("", self), *_subtrees(self)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with changed fields; raise if a name is unknown."""
        values = dict(self.items())
        for name in changes:
            if name not in values:
                raise ValueError(f"{type(self).__name__} has no field {quote(name)}; {nearest(name, values)}")
        return type(self)(**{**values, **changes})

    def as_kind(self, kind: type[P], **changes: Any) -> P:
        """Return a Part of a different kind with the fields that both kinds have, and with `changes`."""
        shared = {name: value for name, value in self.items() if name in hints(kind)}
        return kind(**{**shared, **changes})

    def edit(self, steps: tuple[str, ...], change: Callable[[Any], Any]) -> Self:
        """Return a copy with `change` applied to the value at the path `steps`."""
        name, *rest = steps
        values = dict(self.items())
        if name not in values:
            raise KeyError(f"{type(self).__name__} has no {quote(name)}; {nearest(name, values)}")
        new = _edit(values[name], tuple(rest), change)
        return self if new is values[name] else type(self)(**{**values, name: new})

    def __repr__(self) -> str:
        defaults = default_values(type(self))
        shown = ", ".join(f"{k}={v!r}" for k, v in self.items() if k not in defaults or defaults[k] != v)
        return f"{type(self).__name__}({shown})"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(tree(self))}</pre>"


def _hints(cls: Any) -> dict[str, Any]:
    """Return field name -> type for the fields of a Part."""
    evaluated = types.SimpleNamespace(__annotations__=annotated_hints(cls))  # evaluating the code of types takes long
    return typing.get_type_hints(evaluated)


def _defaults_of(cls: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(cls):
        return {}
    return {f.name: f.default for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}


hints: Callable[[Any], dict[str, Any]] = functools.cache(_hints)
default_values: Callable[[Any], dict[str, Any]] = functools.cache(_defaults_of)


def conform(value: Any, hint: Any, where: str) -> Any:
    """Convert `value` to the type `hint` (list to tuple, dict to Table, int to float) or raise a one-line
    ValueError."""
    value = freeze(value)
    if hint is Any:
        return value
    if isinstance(value, type) and issubclass(value, Part):  # position=Rope
        value = with_defaults(value, where)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for exact in (True, False):  # 1 stays an int if the type is int | float
            for option in args:
                if not exact or type(value) is (type(None) if option is None else typing.get_origin(option) or option):
                    try:
                        return conform(value, option, where)
                    except ValueError:
                        continue
    elif origin is Literal:
        if value in args:
            return value
        raise ValueError(f"{where}: {quote(value)} is not valid; {nearest(str(value), map(str, args))}")
    elif origin is tuple:
        if isinstance(value, tuple):
            kinds = args[:1] * len(value) if args[1:] == (...,) else args
            if len(kinds) == len(value):
                return tuple(conform(v, k, f"{where}.{i}") for i, (v, k) in enumerate(zip(value, kinds, strict=True)))
    elif origin in (Mapping, Table):
        if isinstance(value, Table):
            return Table({k: conform(v, args[1], f"{where}.{k}") for k, v in value.items()})
    elif hint in (int, float) and type(value) in (int, float):
        return _number(value, hint, where)
    elif hint is None:
        if value is None:
            return None
    elif isinstance(hint, type) and isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    if slot_types(hint) and isinstance(value, (Part, str)):
        if isinstance(value, Part) and isinstance(hint, type) and fits(type(value), hint):
            return value
        raise ValueError(f"{where}: {no_fit(value if isinstance(value, str) else type(value).__name__, hint)}")
    raise ValueError(f"{where}: expected {type_name(hint)}, got {quote(thaw(value))}")


def _number(value: float, hint: type, where: str) -> float:
    if hint is float:
        if abs(value) > sys.float_info.max or value != value:
            raise ValueError(f"{where}: expected a finite number, got {quote(value)}")
        return float(value)
    if type(value) is float and not value.is_integer():
        raise ValueError(f"{where}: expected int, got {quote(value)}")
    if type(value) is int and abs(value) >= 2**63:
        raise ValueError(f"{where}: {quote(value, 20)} is too large; it must be below 2**63")
    return int(value)  # 1e6 typed on a command line


def with_defaults(kind: type[Part], where: str) -> Part:
    """Return a Part of this kind with default fields; raise if a field is required."""
    if kind.is_abstract:
        raise ValueError(f"{where}: {kind.__name__} is an abstract kind; {nearest_kind('', kind)}")
    needed = [name for name in hints(kind) if name not in default_values(kind)]
    if needed or kind.open_fields:
        fields = ", ".join(f"{name}=..." for name in needed) or "..."
        raise ValueError(f"{where}: got the class {kind.__name__}; write {kind.__name__}({fields})")
    return kind()


# -- kinds ------------------------------------------------------------------------------------------------------------


def slot_types(hint: Any) -> tuple[type[Part], ...]:
    """Return the Part classes in the type of a field, also inside unions, tuples and mappings."""
    if isinstance(hint, type) and issubclass(hint, Part):
        return (hint,)
    return tuple(kind for inner in typing.get_args(hint) for kind in slot_types(inner))


def fits(kind: type[Part], slot: type[Part]) -> bool:
    """Whether a Part of this kind is allowed in a field of type `slot`."""
    foreign = not any(base.__module__.startswith("anyformer.") for base in kind.mro()[:-2])
    return issubclass(kind, slot) or (foreign and slot.open_slot and slot.is_abstract)


def kinds_for(hint: Any = Part) -> dict[str, type[Part]]:
    """Return the kinds allowed in a field of this type, by name."""
    slots = slot_types(hint) or (Part,)
    kinds = {name: kind for name, kind in Part.kinds.items() if any(fits(kind, slot) for slot in slots)}
    return {name: kind for name, kind in kinds.items() if not kind.is_abstract}


def no_fit(kind: str, hint: Any) -> str:
    """Return an error message: `kind` does not fit a field of type `hint`; the message suggests one that does."""
    near = f'write {{"kind": "{kind}"}}' if kind in kinds_for(hint) else nearest_kind(kind, hint)
    return f"{kind} is not of type {' or '.join(slot.__name__ for slot in slot_types(hint))}; {near}"


def kinds_named(name: str) -> list[type[Part]]:
    """Return the kinds with this name or alias, in any spelling."""
    matches = [kind for kind in Part.kinds.values() if plain(name) in _names({kind.__name__: kind})]
    if not matches:
        raise ValueError(f"no Part is called {quote(name)}; {nearest_kind(name)}")
    return matches


def nearest_kind(name: str, hint: Any = Part) -> str:
    """Return the end of an error message: the kind with the most similar name that fits a field of this type."""
    wanted, known = plain(name), _names(kinds_for(hint))
    every = f"valid: {', '.join(sorted(kinds_for(hint)))}"
    if wanted not in known and name not in Part.kinds and (elsewhere := _names(kinds_for()).get(wanted)):
        return f"that is {elsewhere[0]}, which does not fit here; {every}"
    longer = [each for each in known if len(wanted) > 2 and wanted in each]  # "rms": the shortest that contains it
    shorter = [each for each in known if len(each) > 2 and each in wanted]  # the longest that it contains
    slips = difflib.get_close_matches(wanted, known, n=1, cutoff=0.8)
    close = slips or shorter or difflib.get_close_matches(wanted, known, n=1, cutoff=0.6)
    match = wanted if wanted in known else min(longer, key=len, default=max(close, key=len, default=None))
    if match is None:
        return "`anyformer parts` lists every kind" if slot_types(hint) in ((), (Part,)) else every
    kind, how = known[match]
    return f"did you mean {kind!r}{f' with {how}' if how else ''}?"


def _names(kinds: Mapping[str, type[Part]]) -> dict[str, tuple[str, str]]:
    """Return normalised name or alias -> (kind, fields that the alias implies)."""
    names = {plain(name): (name, "") for name in kinds}
    for name, kind in kinds.items():
        for other in kind.called:
            text, _, how = other.partition(" (")
            names.setdefault(plain(text), (name, how.removesuffix(")")))
    return names


# -- paths ------------------------------------------------------------------------------------------------------------


def _edit(node: Any, steps: tuple[str, ...], change: Callable[[Any], Any]) -> Any:
    if not steps:
        return change(node)
    if isinstance(node, Part):
        return node.edit(steps, change)
    name, rest = steps[0], steps[1:]
    if isinstance(node, Table) and name in node:
        new = _edit(node[name], rest, change)
        return node if new is node[name] else Table({**node, name: new})
    if isinstance(node, tuple) and name.isdecimal() and int(name) < len(node):
        i = int(name)
        new = _edit(node[i], rest, change)
        return node if new is node[i] else (*node[:i], new, *node[i + 1 :])
    valid = list(node) if isinstance(node, Table) else map(str, range(len(node))) if isinstance(node, tuple) else ()
    raise KeyError(f"nothing named {quote(name)} here; {nearest(name, valid)}")


def walk(spec: Any, path: str = "") -> Iterator[tuple[str, Part]]:
    """Yield (address, Part) of a description and every Part in it, outermost first."""
    for address, part in spec.subtree if isinstance(spec, Part) else _subtrees(spec):
        yield f"{path}.{address}" if path and address else path or address, part


def _subtrees(node: Any) -> Iterator[tuple[str, Part]]:
    """Yield (address, Part) of every Part inside a Part, a Table or a tuple, at any depth."""
    for name, child in values_in(node, ""):
        if not is_flat(child):
            yield from walk(child, name)


def values_in(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (address, value) of the values directly in a Part, a Table or a tuple."""
    if isinstance(node, (Part, Table)):
        items: Any = node.items()
    else:
        items = ((str(i), item) for i, item in enumerate(node)) if isinstance(node, tuple) else ()
    for name, value in items:
        yield f"{path}.{name}" if path else name, value


def parts_in(node: Any, path: str = "") -> Iterator[tuple[str, Part]]:
    """Yield (address, Part) of the Parts directly in a Part."""
    for address, part in values_in(node, path):
        if isinstance(part, Part):
            yield address, part
        elif not is_flat(part):
            yield from parts_in(part, address)


def farthest(*parts: Part | Sees | None) -> Sees | None:
    """Return the most that any of these Parts sees. Arguments that are None are skipped; a Part whose `sees` is None
    counts."""
    reaches = [part.sees if isinstance(part, Part) else part for part in parts if part is not None]
    return max(reaches, key=REACH.index)


def tree(spec: Part, name: str = "") -> str:
    """Return a description as indented text, one Part per line, without fields at their default."""
    lines: list[str] = []

    def show(label: str, part: Part, depth: int) -> None:
        defaults = default_values(type(part))
        plain, nested = [], []
        for key, value in part.items():
            if key in defaults and defaults[key] == value:
                continue
            parts = [(key, value)] if isinstance(value, Part) else []
            if isinstance(value, (tuple, Table)) and any(isinstance(p, Part) for _, p in walk(value)):
                pairs = value.items() if isinstance(value, Table) else enumerate(value)
                parts = [(f"{key}.{k}", v) for k, v in pairs if isinstance(v, Part)]
            leaf = parts and not any(True for _, p in walk(value) for _, v in p.items() if v is not None)
            nested += [] if leaf else parts
            plain += [] if parts and not leaf else [f"{key}={value!r}"]
        head = f"{type(part).__name__}({', '.join(plain)})"
        lines.append("  " * depth + (f"{label}: {head}" if label else head))
        for key, child in nested:
            show(key, child, depth + 1)

    show(name, spec, 0)
    return "\n".join(lines)
