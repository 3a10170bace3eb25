"""All kinds of Parts, their documentation, and the slots that they fit. A slot is a field that takes a Part."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
import types
import typing
import warnings
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

from anyformer.specs.field_types import annotated_hints, type_name
from anyformer.specs.messages import nearest, quote
from anyformer.specs.part import ANY, Part, fits, kinds_for, no_fit, slot_types

NOT_CONTAINERS = (None, typing.Union, types.UnionType, typing.Annotated)
GROUP = "anyformer.parts"  # entry point group of packages that define Parts

_packages: list[str] = []  # packages whose modules define kinds


def register_package(name: str) -> None:
    """Make `kinds` import all modules of this package, because they define Parts."""
    _packages.append(name)


def kinds() -> dict[str, type[Part]]:
    """Return every kind of Part by name, including kinds of other packages."""
    for package in [*_packages]:
        _import_modules(package)
    _import_entry_points()
    return Part.kinds


@functools.cache
def _import_modules(package: str) -> None:
    for module in pkgutil.walk_packages(sys.modules[package].__path__, f"{package}."):
        importlib.import_module(module.name)


@functools.cache
def _import_entry_points() -> None:
    """Import the entry points `anyformer.parts` of installed packages. The content of a file never decides what is
    imported."""
    for point in entry_points(group=GROUP):
        try:
            point.load()
        except (Exception, SystemExit) as error:
            for name in [name for name, kind in Part.kinds.items() if kind.__module__ not in sys.modules]:
                del Part.kinds[name]  # the module failed halfway through its import
            package = point.dist.name if point.dist else "a package"
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            warnings.warn(f"{GROUP}: {point.value} of {package} was not imported ({why})", stacklevel=2)


# -- slots ------------------------------------------------------------------------------------------------------------


def slots_of(kind: type[Part]) -> dict[str, Any]:
    """Return field name -> type of a kind; the name is `*` if its fields may have any name."""
    return kind.field_types()


def slot_at(path: str, roots: tuple[type[Part], ...]) -> Any:
    """Return the type of the values allowed at an address in descriptions of these kinds. An address may also begin
    with a kind: `Attention.position`."""
    first, _, rest = path.partition(".")
    if rest and first in kinds():
        roots, path = (Part.kinds[first],), rest
    slot: Any = typing.Union[roots]  # noqa: UP007
    for step in path.split("."):
        found = [*_inside(slot, step)]
        if not found:
            names = {name for kind in _below(slot) for name in slots_of(kind)} - {ANY}
            raise ValueError(f"no slot {quote(path)}: no kind has a field {quote(step)} there; {nearest(step, names)}")
        slot = typing.Union[tuple(found)]  # noqa: UP007
    return slot


def only_kind(slot: Any) -> str | None:
    """Return the only kind that fits a slot; None if several kinds or a table fit."""
    names = [*kinds_for(slot)] if needs_kind(slot) else []
    return names[0] if len(names) == 1 else None


def needs_kind(slot: Any) -> bool:
    """Whether a JSON object in this slot must be a Part, and not a table."""
    return bool(slot_types(slot)) and Part not in slot_types(slot) and not _containers(slot)


def wrong_kind(kind: str | None, slot: Any) -> str:
    """Return why a Part of this kind does not fit a slot, or "" if it does."""
    if not needs_kind(slot):
        return ""
    if kind is None:
        return f"missing 'kind'; valid: {', '.join(sorted(kinds_for(slot)))}"
    return "" if any(fits(Part.kinds[kind], each) for each in slot_types(slot)) else no_fit(kind, slot)


def _containers(slot: Any) -> list[Any]:
    """Return the mapping and tuple types in a type."""
    options = (slot, *typing.get_args(slot))
    return [option for option in options if typing.get_origin(option) not in NOT_CONTAINERS]


def _below(slot: Any) -> Iterator[type[Part]]:
    """Yield the kinds allowed in a slot, or in the mappings and tuples that it takes."""
    for kind in Part.kinds.values():
        if any(fits(kind, wanted) for wanted in slot_types(slot)):
            yield kind


def _inside(slot: Any, step: str) -> Iterator[Any]:
    """Yield the types of the fields named `step`. If no kind has such a field, `step` is a key: a step of a Block or a
    kind of layer."""
    named = [slots_of(kind)[step] for kind in _below(slot) if step in slots_of(kind)]
    if named:
        yield from named
        return
    yield from (slots_of(kind)[ANY] for kind in _below(slot) if ANY in slots_of(kind))
    for container in _containers(slot):
        yield from slot_types(container)


# -- documentation of kinds -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class About:
    """The documentation of a kind, from its class."""

    name: str
    group: str  # its abstract base kind, or its own name if it has none
    about: str  # first sentence of the docstring
    text: str  # whole docstring
    paper: str
    called: tuple[str, ...]  # aliases
    fields: tuple[dict[str, Any], ...]  # name, type, default (its repr; None: required), about
    fits: tuple[str, ...]  # slots as kind and field: "Sublayer.op"
    module: str


def about(kind: type[Part]) -> About:
    """Return the documentation of a kind of Part."""
    own = kind.__doc__ or ""
    text = "" if own.startswith(f"{kind.__name__}(") else " ".join(own.split())  # "" for the docstring of dataclasses
    home = inspect.getdoc(sys.modules.get(kind.__module__)) or ""
    return About(
        name=kind.__name__,
        group=group_of(kind).__name__,
        about=_sentence(text),
        text=text,
        paper=_papers(own) or _papers(home),
        called=kind.called,
        fields=tuple(fields_of(kind)),
        fits=tuple(sorted(_fits(kind))),
        module=kind.__module__,
    )


def group_of(kind: type[Part]) -> type[Part]:
    """Return the abstract base of this kind that is nearest to Part, or the kind itself."""
    bases = [base for base in reversed(kind.mro()) if issubclass(base, Part) and base is not Part]
    return next((base for base in bases if base.is_abstract), kind)


def _sentence(text: str) -> str:
    """Return the first sentence, without citations."""
    first = re.split(r"(?<=[a-z\])`0-9])\. (?=[A-Z`])", text)[0]
    return re.sub(r" ?\[[^\[\]]*\d{4}[^\[\]]*\]", "", first).removesuffix(".").strip()


def _papers(text: str) -> str:
    found = re.findall(r"\[([^\[\]]*[A-Z][^\[\]]*\d{4}[^\[\]]*)\]", " ".join(text.split()))
    return "; ".join(dict.fromkeys(found))


def fields_of(kind: type[Part]) -> Iterator[dict[str, Any]]:
    """Yield each field's name, type, default and source comment, as text."""
    comments = dict(pair for base in reversed(kind.mro()) for pair in _comments(base))
    for name, hint in annotated_hints(kind).items():
        field = next(field for field in dataclasses.fields(kind) if field.name == name)
        default = None if field.default is dataclasses.MISSING else repr(field.default)
        yield {"name": name, "type": type_name(hint), "default": default, "about": comments.get(name, "")}


@functools.cache
def _comments(kind: type) -> list[tuple[str, str]]:
    """(field, comment after it in the source)"""
    if kind is Part or not issubclass(kind, Part):
        return []
    module: Any = sys.modules.get(kind.__module__)
    source = _classes(module).get(kind.__qualname__.rpartition(".")[2], "")
    return re.findall(r"^    (\w+): .*?  # (.*)$", textwrap.dedent(source), re.MULTILINE)


@functools.cache
def _classes(module: Any) -> dict[str, str]:
    """Return class name -> source for a module; `inspect.getsource` would parse the file once per class."""
    try:
        lines = inspect.getsource(module).splitlines()
    except (OSError, TypeError):  # defined at a prompt
        lines = []
    classes = [node for node in ast.walk(ast.parse("\n".join(lines))) if isinstance(node, ast.ClassDef)]
    return {node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in classes}


def _fits(kind: type[Part]) -> Iterator[str]:
    owners: list[Any] = [*kinds().values()]  # Any, because mypy considers these classes unhashable
    for owner in owners:
        for slot, wanted in _own_slots(owner).items():
            if any(fits(kind, each) for each in wanted):
                yield slot


@functools.cache
def _own_slots(owner: type[Part]) -> dict[str, tuple[type[Part], ...]]:
    """Return slot ("Attention.position") -> its types, for the slots that `owner` declares and does not inherit."""
    if not owner.__module__.startswith("anyformer."):
        return {}
    inherited = {
        name for base in owner.__bases__ if issubclass(base, Part) and base is not Part for name in slots_of(base)
    }
    own = {name: hint for name, hint in slots_of(owner).items() if name not in inherited}
    types = {name: tuple(kind for kind in slot_types(hint) if kind is not Part) for name, hint in own.items()}
    return {f"{owner.__name__}.{name}": accepted for name, accepted in types.items() if accepted}
