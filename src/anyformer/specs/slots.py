"""Every kind of Part there is: what it is, and the slots that it fits."""

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

from anyformer.specs.messages import nearest, quote
from anyformer.specs.part import ANY, Part, abstract, fits, hints, kinds_for, no_fit, slot_types, type_name

GROUP = "anyformer.parts"  # entry points of packages that bring Parts

_packages: list[str] = []  # whose modules declare kinds


def register_package(name: str) -> None:
    """Called by a package whose modules declare Parts: `kinds` then imports all of them."""
    _packages.append(name)


def kinds() -> dict[str, type[Part]]:
    """Every kind of Part by name, those of other packages included: what a description may be made of."""
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
    """What installed packages offer under the entry point group `anyformer.parts`, after ours: nothing that a file says
    decides what is imported."""
    for point in entry_points(group=GROUP):
        try:
            point.load()
        except (Exception, SystemExit) as error:
            for name in [name for name, kind in Part.kinds.items() if kind.__module__ not in sys.modules]:
                del Part.kinds[name]  # of a module that got half way
            package = point.dist.name if point.dist else "a package"
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            warnings.warn(f"{GROUP}: {point.value} of {package} is left out ({why})", stacklevel=2)


# -- slots ------------------------------------------------------------------------------------------------------------


def slots_of(kind: type[Part]) -> dict[str, Any]:
    """Field name -> type, of a kind; `*` where its fields may have any name."""
    return kind.field_types()


def slot_at(path: str, roots: tuple[type[Part], ...]) -> Any:
    """The type of what may stand at an address of any description of these kinds. An address may also begin with a
    kind: `Attention.position`."""
    first, _, rest = path.partition(".")
    if rest and first in kinds():
        roots, path = (Part.kinds[first],), rest
    slot: Any = typing.Union[roots]  # noqa: UP007
    for step in path.split("."):
        found = [*_inside(slot, step)]
        if not found:
            names = {name for kind in _below(slot) for name in slots_of(kind)} - {ANY}
            raise ValueError(f"no slot {quote(path)}: nothing has a field {quote(step)} there; {nearest(step, names)}")
        slot = typing.Union[tuple(found)]  # noqa: UP007
    return slot


def only_kind(slot: Any) -> str | None:
    """The name of the one kind that fits a slot, where there is one alone and no table could stand there."""
    found = [*kinds_for(slot)] if needs_kind(slot) else []
    return found[0] if len(found) == 1 else None


def needs_kind(slot: Any) -> bool:
    """Whether an object in this place can be a Part alone."""
    return bool(slot_types(slot)) and Part not in slot_types(slot) and not _containers(slot)


def wrong_kind(kind: str | None, slot: Any) -> str:
    """Why an object of this kind cannot stand in a slot; nothing where it can."""
    if not needs_kind(slot):
        return ""
    if kind is None:
        return f"which kind? {', '.join(sorted(kinds_for(slot)))}"
    return "" if any(fits(Part.kinds[kind], each) for each in slot_types(slot)) else no_fit(kind, slot)


def _containers(slot: Any) -> list[Any]:
    """The mappings and tuples that a type names."""
    options = (slot, *typing.get_args(slot))
    return [option for option in options if typing.get_origin(option) not in (None, typing.Union, types.UnionType)]


def _below(slot: Any) -> Iterator[type[Part]]:
    """The kinds that may stand in a slot; those of a mapping's values too, whose keys are steps of an address."""
    for kind in Part.kinds.values():
        if any(fits(kind, wanted) for wanted in slot_types(slot)):
            yield kind


def _inside(slot: Any, step: str) -> Iterator[Any]:
    """The types of the fields called so. Where no kind has one, steps and kinds of layers that are called so."""
    named = [slots_of(kind)[step] for kind in _below(slot) if step in slots_of(kind)]
    if named:
        yield from named
        return
    yield from (slots_of(kind)[ANY] for kind in _below(slot) if ANY in slots_of(kind))
    for container in _containers(slot):
        yield from slot_types(container)


# -- what a kind is ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class About:
    """What can be said of a kind, from its class alone."""

    name: str
    group: str  # the kind that it is one of; its own name where it stands alone
    about: str  # one sentence
    text: str  # all that its docstring says
    paper: str
    called: tuple[str, ...]
    fields: tuple[dict[str, Any], ...]  # name, type, default (as Python writes it; None: must be given), about
    fits: tuple[str, ...]  # "Sublayer.op": the kind that has the slot, and the slot
    module: str


def about(kind: type[Part]) -> About:
    """A kind of Part, told."""
    own = kind.__doc__ or ""
    text = "" if own.startswith(f"{kind.__name__}(") else " ".join(own.split())  # what dataclasses write is no sentence
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
    """The abstract kind nearest to Part that this one is of, or itself."""
    return next((base for base in reversed(kind.mro()) if base not in (object, Part) and abstract(base)), kind)


def _sentence(text: str) -> str:
    """The first sentence, without its papers."""
    first = re.split(r"(?<=[a-z\])`0-9])\. (?=[A-Z`])", text)[0]
    return re.sub(r" ?\[[^\[\]]*\d{4}[^\[\]]*\]", "", first).removesuffix(".").strip()


def _papers(text: str) -> str:
    found = re.findall(r"\[([^\[\]]*[A-Z][^\[\]]*\d{4}[^\[\]]*)\]", " ".join(text.split()))
    return "; ".join(dict.fromkeys(found))


def fields_of(kind: type[Part]) -> Iterator[dict[str, Any]]:
    """Each field's name, type, default and what the source says of it, as text."""
    comments = dict(pair for base in reversed(kind.mro()) for pair in _comments(base))
    for name, hint in hints(kind).items():
        field = next(field for field in dataclasses.fields(kind) if field.name == name)
        default = None if field.default is dataclasses.MISSING else repr(field.default)
        yield {"name": name, "type": type_name(hint), "default": default, "about": comments.get(name, "")}


@functools.cache
def _comments(kind: type) -> list[tuple[str, str]]:
    """(field, what the source says behind it)"""
    if kind is Part or not issubclass(kind, Part):
        return []
    module: Any = sys.modules.get(kind.__module__)
    source = _classes(module).get(kind.__qualname__.rpartition(".")[2], "")
    return re.findall(r"^    (\w+): .*?  # (.*)$", textwrap.dedent(source), re.MULTILINE)


@functools.cache
def _classes(module: Any) -> dict[str, str]:
    """The source of each class of a module by name; `inspect.getsource` would parse the file again for each of them."""
    try:
        lines = inspect.getsource(module).splitlines()
    except (OSError, TypeError):  # typed at a prompt
        lines = []
    found = [node for node in ast.walk(ast.parse("\n".join(lines))) if isinstance(node, ast.ClassDef)]
    return {node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in found}


def _fits(kind: type[Part]) -> Iterator[str]:
    owners: list[Any] = [*kinds().values()]  # mypy: a class of Parts can be hashed, though they say they cannot
    for owner in owners:
        for slot, wanted in _own_slots(owner).items():
            if any(fits(kind, each) for each in wanted):
                yield slot


@functools.cache
def _own_slots(owner: type[Part]) -> dict[str, tuple[type[Part], ...]]:
    """`Attention.position` -> the kinds that it asks for: the slots of one of our kinds that it did not inherit."""
    if not owner.__module__.startswith("anyformer."):
        return {}
    inherited = {name for base in owner.__bases__ if base not in (Part, object) for name in slots_of(base)}
    own = {name: hint for name, hint in slots_of(owner).items() if name not in inherited}
    asked = {name: tuple(kind for kind in slot_types(hint) if kind is not Part) for name, hint in own.items()}
    return {f"{owner.__name__}.{name}": wanted for name, wanted in asked.items() if wanted}
