"""Published model families, one file each, and lookup by name. No module outside this folder names a family."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from anyformer.specs.messages import nearest, quote

if TYPE_CHECKING:
    from anyformer.families.base.family import Family
    from anyformer.models import Model


@functools.cache
def _files() -> tuple[str, ...]:
    return tuple(module.name for module in pkgutil.iter_modules(__path__))


@functools.cache
def catalogue() -> dict[str, Family]:
    """Return {model_type: Family} of all family files."""
    return {each.name: each for file in _files() for each in _in_file(file)}


def _in_file(module: str) -> tuple[Family, ...]:
    return getattr(importlib.import_module(f"{__name__}.{module}"), "FAMILIES", ())


def find(model_type: str) -> Family:
    if not isinstance(model_type, str):
        raise ValueError(f"model_type is {quote(model_type)}; it must be the name of a family, such as 'bert'")
    file = model_type.replace("-", "_")  # most families are in a file of that name; then no other file is imported
    if file in _files():
        for each in _in_file(file):
            if each.name == model_type:
                return each
    if model_type not in catalogue():
        raise ValueError(f"unknown model_type {quote(model_type)}; {nearest(model_type, catalogue())}")
    return catalogue()[model_type]


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
