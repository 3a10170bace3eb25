"""A model inside another model: its config inside the config, its weights below an address."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from anyformer.families.base.family import Family
from anyformer.families.base.fields import GENERATION, Entry
from anyformer.parts import Model
from anyformer.specs.messages import quote
from anyformer.weights.rules import Rule


def read_nested(name: str, config: Any, family: Family, architecture: str, **known: Any) -> Model:
    """Return the description of the config in the field `name`; the values in `known` replace the config's."""
    if not isinstance(config, Mapping):
        raise ValueError(f"{name} must be an object, got {quote(config)}")
    return family.part({**config, **known}, architecture)


def nested_config(family: Family, part: Callable[[Any], Model], default: Any = None) -> Entry:
    """Return a field that contains the config of the model `part(spec)`."""
    return Entry(default, lambda spec: family.recover(part(spec)), frozenset((*family.all_fields, *GENERATION)))


def nested_rules(rules: Iterable[Rule], prefix: str, theirs: str = "", ours: str = "") -> list[Rule]:
    """Move rules below another model: published names start with `theirs` (`~` is `prefix`), addresses with `ours`."""
    moved = [*rules]
    for rule in moved:
        rule.sources = tuple(theirs + name.replace("~", prefix) for name in rule.sources)
        rule.targets = tuple(f"{ours}{name}" for name in rule.targets)
    return moved
