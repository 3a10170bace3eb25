"""Descriptions: frozen Parts and their dotted addresses.

A Part says what one thing is; `build` makes the module that does it. Parts nest, and the dotted path of a Part in its
description is the dotted name of its module, so weights, overrides, hooks and error messages speak one language:

>>> from anyformer.parts.norm import LayerNorm
>>> norm = LayerNorm(eps=1e-6)
>>> norm.replace(bias=False)
LayerNorm(eps=1e-06, bias=False)
"""

from __future__ import annotations

import contextlib
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
from typing import Any, ClassVar, Literal, Self, dataclass_transform

from anyformer.specs.frozen import Table as Table
from anyformer.specs.frozen import freeze as freeze
from anyformer.specs.frozen import is_flat as is_flat
from anyformer.specs.frozen import thaw as thaw
from anyformer.specs.messages import nearest, plain, quote
from anyformer.specs.services import service

Sees = Literal["itself", "past", "all"]  # of a text, what a token's result depends on
REACH = ("itself", "past", None, "all")  # from the least to the most; None is not said


@dataclasses.dataclass(frozen=True)
class Site:
    """Where a Part is being built: what it may know of its surroundings."""

    width: int  # D, of the residual stream here
    layer: int = 0  # index of this block among `depth` blocks, counted through all stages
    depth: int = 1
    address: str = ""  # dotted name of the module, from the model down

    def child(self, name: str, **changes: Any) -> Site:
        address = f"{self.address}.{name}" if self.address else name
        return dataclasses.replace(self, address=address, **changes)

    def layer_of(self, block: Part) -> Any:
        """The module of one layer of a Stack; whoever only looks at layers may give one module for equal ones."""
        return block.build(self)


@dataclasses.dataclass(frozen=True)
class LayerSharing:
    """All layers of a Stack use weights or states of the first (Linformer, Luna, DeBERTa)."""

    off: str  # the setting that turns it off
    conflicts: tuple[str, ...]  # fields of the Stack that cannot be used with it
    form: tuple[object, ...] = ()  # the same in all layers


ANY = "*"  # in the place of a field's name, where whoever writes a Part names its fields
TOGETHER: contextvars.ContextVar[bool] = contextvars.ContextVar("together", default=False)  # checks wait for the rest


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
class Part:
    """A description of one thing. Subclasses become frozen dataclasses and JSON kinds by being declared."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    kinds: ClassVar[dict[str, type[Part]]] = {}
    open_fields: ClassVar[bool] = False  # fields are named by whoever writes one (Block), not by the class
    open_slot: ClassVar[bool] = False  # where this is asked for, a Part of another package may stand too
    said: ClassVar[Sees | None] = None  # what a class says of itself: `class Shift(Part, sees="past")`
    called: ClassVar[tuple[str, ...]] = ()  # its other names, "SwiGLU (activation='silu')" where fields make it that

    def __init_subclass__(cls, sees: Sees | None = None, called: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.called = called
        if sees is not None or {"build", "make", "allows"} & vars(cls).keys():  # who writes what runs speaks for it
            cls.said = sees
        for name in inspect.get_annotations(cls).keys() - vars(cls).keys():
            if isinstance(getattr(cls, name, None), property):  # not the default of a field of the same name
                setattr(cls, name, dataclasses.MISSING)
        own = cls.open_fields
        dataclasses.dataclass(frozen=True, kw_only=True, repr=False, init=not own, eq=not own)(cls)
        other = cls.kinds.get(cls.__name__, cls).__module__
        if other != cls.__module__:  # a file cannot say which of them it means
            raise ValueError(f"two kinds of Part are called {cls.__name__}, in {other} and in {cls.__module__}")
        cls.kinds[cls.__name__] = cls

    def __new__(cls, *values: Any, **fields: Any) -> Self:
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
                service("kinds")()  # the message names the nearest of all kinds, not of those imported so far
                value = conform(given, hint, where)
            object.__setattr__(self, name, value)
        if not TOGETHER.get():
            self.check()

    def check(self) -> None:
        """Raises ValueError where the fields contradict each other."""

    def build(self, site: Any) -> Any:
        """The torch module of this Part, at a `Site` (width, layer, address)."""
        raise TypeError(f"{type(self).__name__} builds no module of its own")

    # -- what a token sees ----------------------------------------------------------------------------------------

    @functools.cached_property
    def sees(self) -> Sees | None:
        """What a token's result depends on along the text, with all that is in this Part: the token itself, what came
        before it too, or also what comes after. None where a kind does not say, which a model that writes refuses."""
        return None if self.said is None else self.reaches()

    def reaches(self) -> Sees | None:
        """For kinds whose fields decide: what is said of the class, or more where a Part in it sees more."""
        return farthest(self.said, *(part for _, part in parts_in(self)))

    @property
    def causal_alternative(self) -> str:
        """The nearest description that does not look ahead, where this one does."""
        return ""

    # -- capabilities: asked of any Part; a kind overrides them by a property, a class variable or a field ------------

    routes: ClassVar[bool] = False  # chooses experts for each token
    length_dependent: ClassVar[bool] = False  # the length of the text changes the result for every token

    @property
    def requires(self) -> tuple[str, ...]:
        """Names of what it needs from the embedding, such as "a grid"; see `Embedding.gives`."""
        return ()

    @property
    def bias_heads(self) -> int | None:
        """Number of heads whose scores take the position bias shared by a Stack's layers; None: it takes no bias."""
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
    def reads_tree(self) -> bool:
        """Whether it reads the dependency tree (the input `tree_parents`)."""
        return False

    @property
    def reads_graph(self) -> bool:
        """Whether it reads the graph whose nodes the tokens are (the input `graph_edges`)."""
        return False

    @property
    def layer_sharing(self) -> LayerSharing | None:
        """How the layers of a Stack use weights or states of the first; None: they do not."""
        return None

    def out_width(self, width: int) -> int:
        """Width of the stream that leaves, for a stream of this width."""
        return width

    @classmethod
    def field_types(cls) -> dict[str, Any]:
        """Field name -> type of what may stand there; `*` where fields may have any name."""
        return hints(cls)

    def sizes_left_behind(self, before: Part, path: str, changes: Mapping[str, Any]) -> str:
        """After an override of this Part at `path`: one line about sizes that were chosen for other values of `before`
        and did not follow; "" where there are none."""
        return ""

    # -- fields, by name ------------------------------------------------------------------------------------------

    def items(self) -> Iterator[tuple[str, Any]]:
        """(name, value) of every field, in order: what addresses, JSON and trees are made of."""
        for name in hints(type(self)):
            yield name, getattr(self, name)

    @functools.cached_property
    def subtree(self) -> tuple[tuple[str, Part], ...]:
        """(address, Part) of this Part and every Part in it: `walk` asks for it again and again."""
        return ("", self), *_subtrees(self)

    def replace(self, **changes: Any) -> Self:
        """A copy with other fields; unknown names raise."""
        values = dict(self.items())
        for name in changes:
            if name not in values:
                raise ValueError(f"{type(self).__name__} has no field {quote(name)}; {nearest(name, values)}")
        return type(self)(**{**values, **changes})

    def edit(self, steps: tuple[str, ...], change: Callable[[Any], Any]) -> Self:
        """A copy where the value at the path `steps` went through `change`."""
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
    """Field name -> type, for the fields of a Part."""
    found = typing.get_type_hints(cls)
    return {field.name: found[field.name] for field in dataclasses.fields(cls)}


def _defaults_of(cls: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(cls):
        return {}
    return {f.name: f.default for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}


hints: Callable[[Any], dict[str, Any]] = functools.cache(_hints)
default_values: Callable[[Any], dict[str, Any]] = functools.cache(_defaults_of)


def conform(value: Any, hint: Any, where: str) -> Any:
    """`value` as the type `hint` asks (lists as tuples, dicts as Tables, ints as floats), or one clear ValueError."""
    value = freeze(value)
    if hint is Any:
        return value
    if isinstance(value, type) and issubclass(value, Part):  # position=Rope
        value = with_defaults(value, where)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for exact in (True, False):  # 1 stays an int where int | float is asked
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
    elif hint is float and type(value) in (int, float):
        if abs(value) > sys.float_info.max or value != value:
            raise ValueError(f"{where}: expected a finite number, got {quote(value)}")
        return float(value)
    elif hint is float and type(value) is float and value == value:
        return value  # infinity
    elif hint is int and type(value) is int:
        if abs(value) < 2**63:
            return value
        raise ValueError(f"{where}: {quote(value, 20)} is no size or number of anything")
    elif hint is int and type(value) is float and value.is_integer():
        return int(value)  # 1e6 typed on a command line
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


def with_defaults(kind: type[Part], where: str) -> Part:
    """A Part of this kind where none of its fields must be given."""
    if abstract(kind):
        raise ValueError(f"{where}: {kind.__name__} is what several kinds have in common; {nearest_kind('', kind)}")
    needed = [name for name in hints(kind) if name not in default_values(kind)]
    if needed or kind.open_fields:
        fields = ", ".join(f"{name}=..." for name in needed) or "..."
        raise ValueError(f"{where}: got the class {kind.__name__}; write {kind.__name__}({fields})")
    return kind()


@contextlib.contextmanager
def errors_at(path: str, kind: type[Part]) -> Iterator[None]:
    """A mistake in a Part of a description is told by its address there, and not by its kind."""
    try:
        yield
    except ValueError as error:
        text = str(error).removeprefix(f"{kind.__name__}.").removeprefix(f"{kind.__name__}: ")
        inside = text.startswith(tuple(f"{name}{end}" for name in hints(kind) for end in (":", ".", " is ", " are ")))
        raise ValueError(f"{path}{'.' if inside else ': '}{text}" if path else text) from None


def type_name(hint: Any) -> str:
    """A type as a person writes it."""
    if isinstance(hint, type) and not typing.get_args(hint):
        return "None" if hint is type(None) else hint.__name__
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(type_name, inner))
    if origin is typing.Literal:
        return " | ".join(map(repr, inner))
    if inner:
        return f"{getattr(origin, '__name__', origin)}[{', '.join('...' if i is ... else type_name(i) for i in inner)}]"
    return str(hint).removeprefix("typing.")


# -- kinds ------------------------------------------------------------------------------------------------------------


def slot_types(hint: Any) -> tuple[type[Part], ...]:
    """The kinds of Part that the type of a field names, also inside of unions, tuples and mappings."""
    if isinstance(hint, type) and issubclass(hint, Part):
        return (hint,)
    return tuple(kind for inner in typing.get_args(hint) for kind in slot_types(inner))


def fits(kind: type[Part], slot: type[Part]) -> bool:
    """Whether a Part of this kind may stand where `slot` is asked for."""
    foreign = not any(base.__module__.startswith("anyformer.") for base in kind.mro()[:-2])
    return issubclass(kind, slot) or (foreign and slot.open_slot and abstract(slot))


def kinds_for(hint: Any = Part) -> dict[str, type[Part]]:
    """The kinds that may stand in a field of this type, by name."""
    slots = slot_types(hint) or (Part,)
    kinds = {name: kind for name, kind in Part.kinds.items() if any(fits(kind, slot) for slot in slots)}
    return {name: kind for name, kind in kinds.items() if not abstract(kind)}


def no_fit(kind: str, hint: Any) -> str:
    """Of an error message: what is called so does not fit here, and what does."""
    near = f'write {{"kind": "{kind}"}}' if kind in kinds_for(hint) else nearest_kind(kind, hint)
    return f"{kind} is no {' or '.join(slot.__name__ for slot in slot_types(hint))}; {near}"


def abstract(kind: type[Part]) -> bool:
    """Whether a kind is only what others have in common: it leaves open what they do."""
    below = kind.__subclasses__()
    methods = [value for name in dir(kind) if hasattr(value := getattr(kind, name), "__code__")]
    left_open = any("NotImplementedError" in method.__code__.co_names for method in methods)
    builds = kind.build is Part.build and any(other.build is not Part.build for other in below)
    bare = Part in kind.__bases__ and not kind.open_fields and not hints(kind)
    return bool(below) and (left_open or builds or bare)


def named(name: str) -> list[type[Part]]:
    """The kinds that go by this name, their own or another, however it is written."""
    found = [kind for kind in Part.kinds.values() if plain(name) in _names({kind.__name__: kind})]
    if not found:
        raise ValueError(f"no Part is called {quote(name)}; {nearest_kind(name)}")
    return found


def nearest_kind(name: str, hint: Any = Part) -> str:
    """The end of an error message: the kind that fits a field of this type and is called so, or almost so."""
    wanted, known = plain(name), _names(kinds_for(hint))
    every = f"valid: {', '.join(sorted(kinds_for(hint)))}"
    if wanted not in known and name not in Part.kinds and (elsewhere := _names(kinds_for()).get(wanted)):
        return f"that is {elsewhere[0]}, which does not fit here; {every}"
    inside = [each for each in known if min(len(each), len(wanted)) > 2 and (each in wanted or wanted in each)]
    close = inside or difflib.get_close_matches(wanted, known, n=1, cutoff=0.6)
    found = wanted if wanted in known else max(close, key=len, default=None)
    if found is None:
        return "`anyformer parts` lists every kind" if slot_types(hint) in ((), (Part,)) else every
    kind, how = known[found]
    return f"did you mean {kind!r}{f' with {how}' if how else ''}?"


def _names(kinds: Mapping[str, type[Part]]) -> dict[str, tuple[str, str]]:
    """Every name that these kinds go by, plainly written -> the kind, and the fields that make it that."""
    found = {plain(name): (name, "") for name in kinds}
    for name, kind in kinds.items():
        for other in kind.called:
            text, _, how = other.partition(" (")
            found.setdefault(plain(text), (name, how.removesuffix(")")))
    return found


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
    """(address, Part) of a description and every Part in it, outermost first."""
    for address, part in spec.subtree if isinstance(spec, Part) else _subtrees(spec):
        yield f"{path}.{address}" if path and address else path or address, part


def _subtrees(node: Any) -> Iterator[tuple[str, Part]]:
    """(address, Part) of every Part inside a Part, a Table or a tuple."""
    for name, child in values_in(node, ""):
        if not is_flat(child):
            yield from walk(child, name)


def values_in(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(address, value) of what stands directly in a Part, a Table or a tuple."""
    if isinstance(node, (Part, Table)):
        items: Any = node.items()
    else:
        items = ((str(i), item) for i, item in enumerate(node)) if isinstance(node, tuple) else ()
    for name, value in items:
        yield f"{path}.{name}" if path else name, value


def parts_in(node: Any, path: str = "") -> Iterator[tuple[str, Part]]:
    """(address, Part) of the Parts directly in a Part."""
    for address, part in values_in(node, path):
        if isinstance(part, Part):
            yield address, part
        elif not is_flat(part):
            yield from parts_in(part, address)


def farthest(*parts: Part | Sees | None) -> Sees | None:
    """The most that one of them sees. Parts that are not there (None) are left out; a kind that says nothing is not."""
    found = [part.sees if isinstance(part, Part) else part for part in parts if part is not None]
    return max(found, key=REACH.index)


def parts_seeing_ahead(part: Part, path: str = "") -> Iterator[tuple[str, Part]]:
    """(address, Part) of the innermost Parts by which a token sees later ones, or that do not say what it sees."""
    if part.sees in ("itself", "past"):
        return
    children = [] if part.said is None or part.causal_alternative else parts_in(part, path)
    yield from [found for at, child in children for found in parts_seeing_ahead(child, at)] or [(path, part)]


def tree(spec: Part, name: str = "") -> str:
    """A description as indented text, one Part a line, fields at their default left out."""
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
