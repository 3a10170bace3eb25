"""Which published class a folder holds, where its config does not say (those of 2019 name neither class nor family):
the one whose rules take every tensor of the checkpoint and fill every parameter."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anyformer import families
from anyformer.families.base.family import Family
from anyformer.families.base.fields import Field, named_class
from anyformer.models import Model
from anyformer.specs.messages import nearest, quote
from anyformer.weights.rules import match

Choice = tuple[Family, str | None]


def written_out(config: dict[str, Any]) -> dict[str, Any]:
    """A config that names a size of ours and what differs from it, as timm's do ({"architecture": "mvitv2_tiny"})."""
    named, sizes = config.get("architecture"), {name.replace("-", "_"): name for name, _ in families.names()}
    if config.get("model_type") is not None or not isinstance(named, str) or named not in sizes:
        return config
    family, more = dict(families.names())[sizes[named]], config.get("model_args") or {}
    if not isinstance(more, Mapping):
        raise ValueError(f"model_args is {quote(more)}; it must be an object of config fields")
    given = {name: value for name, value in config.items() if name not in ("architecture", "model_args")}
    return {"model_type": family.name, **family.sizes[sizes[named]].config, **given, **more}


def choices(config: Mapping[str, Any], architecture: str | None = None) -> list[Choice]:
    """The (family, class) pairs that a config leaves open. `architecture` is the class that the caller asks for."""
    if not isinstance(architecture, str | None):
        raise ValueError(f"architecture is {quote(architecture)}; it must be the name of a class")
    named = architecture or named_class(config)
    model_type = config.get("model_type")
    if model_type is not None:
        family = families.find(model_type)
        return [(family, named)] if named else [(family, each) for each in family.architectures or (None,)]
    every = [(family, each) for family in families.catalogue().values() for each in family.architectures]
    found: list[Choice] = [(family, each) for family, each in every if family.renamed.get(named, named) in (None, each)]
    if not found:
        hint = nearest(str(named), [each for _, each in every])
        raise ValueError(f"no model_type, and no class {quote(named)}; {hint}")
    return found


def choose(
    open: Sequence[Choice], config: Mapping[str, Any], names: Sequence[str], load: Callable[[Family, Model], Any]
) -> Choice:
    """The one of `open` that fits a checkpoint with tensors called `names`; `load` reports how a description fits.

    Of several, those that drop the fewest tensors and whose fields differ least from the config's. Classes of one
    family that take the same tensors compute the same, and so do those that are described alike (RoBERTa's and
    XLM-R's): the first stands for all. Several families are refused.
    """
    fits: list[tuple[tuple[int, int], Choice, Model]] = []
    unnamed = without_label_names(config)  # hundreds of classes are tried
    for family, architecture in open:
        spec = try_describe(family, architecture, unnamed)
        if spec is None or not takes(family, spec, names):
            continue
        try:
            report = load(family, spec)
        except ValueError:  # more is missing than a load starts anew
            continue
        if report.clean:
            own = {name for name, field in family.fields.items() if isinstance(field, Field)}
            given = {family.aliases.get(name, name) for name in config}
            nameless = spec.replace(family="", architecture="", source={})
            fits.append(((len(report.dropped), len(own ^ given)), (family, architecture), nameless))
    least = min((score for score, _, _ in fits), default=None)
    alike = {spec: choice for score, choice, spec in reversed(fits) if score == least}
    best = [choice for _, choice, _ in fits if choice in alike.values()]
    if not best and config.get("model_type"):
        return open[0]  # a load will say what does not fit
    if len({family.name for family, _ in best}) == 1:
        return best[0]
    classes = [str(each) for _, each in best]
    what = f"the tensors fit {' and '.join(classes)}" if best else "the tensors fit no known class"
    example = (classes or ["BertForPreTraining"])[0]
    raise ValueError(f"no model_type, and {what}; say which it is with architecture={example!r} or another")


def without_label_names(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same config with the number of its labels instead of their names."""
    if not isinstance(names := config.get("id2label"), Mapping):
        return config
    others = {name: value for name, value in config.items() if name not in ("id2label", "label2id")}
    return {"num_labels": len(names), **others}


def try_describe(family: Family, architecture: str | None, config: Mapping[str, Any]) -> Model | None:
    """What a config describes, if it is this family's."""
    with warnings.catch_warnings():  # of fields that another family's class does not know
        warnings.simplefilter("ignore")
        try:
            return family.read(config, architecture)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
            return None


def takes(family: Family, spec: Model, names: Sequence[str]) -> bool:
    """Whether there is a rule for each of these tensors. What it would make is not asked: nothing is built."""
    today = family.current_names(names)
    prefix = family.prefix_in(today, spec.architecture)
    sources = [source for rule in family.rules(spec) for source in rule.sources]
    templates = [template.replace("~", prefix) for template in (*sources, *family.dropped)]
    plain, open = set(templates), [template for template in templates if "{" in template or "*" in template]
    return all(name in plain or any(match(each, name) is not None for each in open) for name in today)
