"""A model that is a part of another: its config inside the config, its weights below an address."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from anyformer.families.base.family import Family
from anyformer.families.base.fields import GENERATION, Field
from anyformer.models import Model
from anyformer.specs.messages import quote
from anyformer.weights.rules import Rule


def read_nested(name: str, config: Any, family: Family, architecture: str, **known: Any) -> Model:
    """The model of a config that is the value of the field `name`. What is `known` is not read there."""
    if not isinstance(config, Mapping):
        raise ValueError(f"{name}={quote(config)} is not an object")
    return family.part({**config, **known}, architecture)


def nested_config(family: Family, part: Callable[[Any], Model], default: Any = None) -> Field:
    """A field that is the config of a `part`."""
    return Field(default, lambda spec: family.recover(part(spec)), frozenset((*family.all_fields, *GENERATION)))


def nested_rules(rules: Iterable[Rule], prefix: str, theirs: str = "", ours: str = "") -> list[Rule]:
    """The rules of a part with this prefix, whose published names begin with `theirs` and our addresses with `ours`."""
    moved = [*rules]
    for rule in moved:
        rule.sources = tuple(theirs + name.replace("~", prefix) for name in rule.sources)
        rule.targets = tuple(f"{ours}{name}" for name in rule.targets)
    return moved
