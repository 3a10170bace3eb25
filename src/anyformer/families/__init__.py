"""Published model families, one file each, and lookup by name. No module outside this folder names a family. Each
`Family` that is a value of a file is part of the catalogue.

Other packages add families with `register`, or with an entry point (see specs/extensions.py)."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from anyformer.specs.extensions import extensions
from anyformer.specs.messages import nearest, quote

if TYPE_CHECKING:
    from anyformer.families.base.family import Family
    from anyformer.models import Model


@functools.cache
def _files() -> tuple[str, ...]:
    return tuple(module.name for module in pkgutil.iter_modules(__path__))


_registered: dict[str, Family] = {}


def register(family: Family) -> None:
    """Add a family: its checkpoints load, and its sizes are descriptions with a name. It must have a new name.

    >>> from anyformer.families.llama import LLAMA
    >>> af.register(LLAMA.but("my_llama", changes={"decoder.norm.eps": 1e-3}))  # doctest: +SKIP
    """
    if family.name in catalogue() and catalogue()[family.name] is not family:
        raise ValueError(f"there is a family {quote(family.name)} already; choose another name")
    taken = {name for name, other in names() if other is not family} & {*family.sizes}
    if taken:
        raise ValueError(f"there is a description named {quote(min(taken))} already; choose another name")
    _registered[family.name] = family
    catalogue.cache_clear()


def _from_packages() -> Iterator[Family]:
    """Yield the families of other packages."""
    for point in extensions("families"):
        yield from point.load()
    yield from _registered.values()


@functools.cache
def catalogue() -> dict[str, Family]:
    """Return {model_type: Family} of all family files and packages."""
    own = {each.name: each for file in _files() for each in _in_file(file)}
    for each in _from_packages():
        if own.setdefault(each.name, each) is not each:
            raise ValueError(f"two families are named {quote(each.name)}")
    return own


def _in_file(file: str) -> Iterator[Family]:
    """Yield the families of a file, without imported relatives that have a file of their own."""
    from anyformer.families.base.family import Family

    for each in vars(importlib.import_module(f"{__name__}.{file}")).values():
        if isinstance(each, Family) and (_file_name(each.name) == file or _file_name(each.name) not in _files()):
            yield each


def _file_name(model_type: str) -> str:
    """Return the name of the file that most families of this name are in."""
    return model_type.replace("-", "_")


def find(model_type: str) -> Family:
    if not isinstance(model_type, str):
        raise ValueError(f"model_type is {quote(model_type)}; it must be the name of a family, such as 'bert'")
    file = _file_name(model_type)
    if file in _files():  # then no other file is imported
        for each in _in_file(file):
            if each.name == model_type:
                return each
    if model_type not in catalogue():
        raise ValueError(f"unknown model_type {quote(model_type)}; {suggest(model_type)}")
    return catalogue()[model_type]


def suggest(model_type: str) -> str:
    """Return what to use instead of an unknown family: its relatives, which begin with the same word, or the nearest
    name. A config of a relative may load only in part, so a person has to choose."""
    word = re.match(r"[a-z]+", model_type.lower())
    relatives = [name for name in catalogue() if word and re.match(r"[a-z]+", name) and name.startswith(word[0])]
    if relatives and model_type[-1:].isdigit():
        return f"it is not a known family; nearest relatives: {', '.join(sorted(relatives))}"
    return nearest(model_type, catalogue())


def names() -> Iterator[tuple[str, Family]]:
    """Yield (name, family) for every named description."""
    for each in catalogue().values():
        for name in each.sizes:
            yield name, each


def find_description(name: str) -> Model:
    sizes = dict(names())
    if name not in sizes:
        raise ValueError(f"no description named {quote(name)}; {nearest(name, sizes)} (or a path to a spec.json)")
    return sizes[name].read_size(name)
