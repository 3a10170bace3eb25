"""What other packages add to anyformer: families, commands, experiments and their results, pictures and data.

A package declares entry points in its pyproject.toml:

    [project.entry-points."anyformer.families"]     # a tuple of anyformer.families.base.family.Family
    mine = "my_package.families:FAMILIES"
    [project.entry-points."anyformer.commands"]     # verb -> a module like those of anyformer.cli, and ABOUT
    mine = "my_package.mine"
    [project.entry-points."anyformer.experiments"]  # a package with one experiment per file
    mine = "my_package.experiments"
    [project.entry-points."anyformer.results"]      # a function: name -> anyformer.lab.registry.StoredResult or None
    mine = "my_package.results:load_result"
    [project.entry-points."anyformer.pictures"]     # name -> anyformer.look.picture.Picture
    mine = "my_package.pictures:PICTURES"
    [project.entry-points."anyformer.data"]         # folder -> anyformer.recipes.shared.sources.Origin
    mine = "my_package.data:ORIGINS"

A package that is on the path but not installed calls `register`.
"""

from __future__ import annotations

import functools
from importlib import metadata
from typing import Any

_registered: dict[str, metadata.EntryPoint] = {}
MISSING = "none are installed: run `pip install -e .` in the checkout, or `python -m anyformer_course` for `anyformer`"


def register(group: str, value: str, name: str) -> None:
    """Add a module, or an object as "module:name", to a group: families, commands, experiments, results, pictures or
    data."""
    _registered[value] = metadata.EntryPoint(name, value, f"anyformer.{group}")


@functools.cache
def _installed(group: str) -> tuple[metadata.EntryPoint, ...]:
    return tuple(metadata.entry_points(group=f"anyformer.{group}"))


def extensions(group: str) -> list[metadata.EntryPoint]:
    """Return the entry points of a group. Nothing is imported until `load` of an entry point is called."""
    points = {point.value: point for point in _registered.values() if point.group == f"anyformer.{group}"}
    return list({**{point.value: point for point in _installed(group)}, **points}.values())


def tables(group: str) -> dict[str, Any]:
    """Return the dictionaries of a group as one."""
    return {name: value for point in extensions(group) for name, value in point.load().items()}
