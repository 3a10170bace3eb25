"""Detection of the published class in a folder whose config does not name it (configs of 2019 name neither class nor
family): the class whose rules use every tensor of the checkpoint and fill every parameter."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anyformer import families
from anyformer.families.base.family import Family
from anyformer.families.base.fields import Entry, named_class
from anyformer.parts import Model
from anyformer.specs.messages import nearest, quote
from anyformer.weights.rules import match

Choice = tuple[Family, str | None]


def written_out(config: dict[str, Any]) -> dict[str, Any]:
    """Add all fields to a config that names one of our sizes, as timm's do ({"architecture": "mvitv2_tiny"})."""
    named, sizes = config.get("architecture"), {name.replace("-", "_"): name for name, _ in families.names()}
    if config.get("model_type") is not None or not isinstance(named, str) or named not in sizes:
        return config
    family, arguments = dict(families.names())[sizes[named]], config.get("model_args") or {}
    if not isinstance(arguments, Mapping):
        raise ValueError(f"model_args is {quote(arguments)}; it must be an object of config fields")
    given = {name: value for name, value in config.items() if name not in ("architecture", "model_args")}
    return {"model_type": family.name, **family.sizes[sizes[named]].config, **given, **arguments}


def choices(config: Mapping[str, Any], architecture: str | None = None) -> list[Choice]:
    """Return the (family, class) pairs that a config allows. `architecture` is the class that the caller requests."""
    if not isinstance(architecture, str | None):
        raise ValueError(f"architecture is {quote(architecture)}; it must be the name of a class")
    named = architecture or named_class(config)
    model_type = config.get("model_type")
    if model_type is not None:
        family = families.find(model_type)
        return [(family, named)] if named else [(family, each) for each in family.architectures or (None,)]
    every = [(family, each) for family in families.catalogue().values() for each in family.architectures]
    pairs: list[Choice] = [
        (family, each) for family, each in every if named is None or family.renamed.get(named, named) == each
    ]
    if not pairs:
        hint = nearest(str(named), [each for _, each in every])
        raise ValueError(f"the config has no model_type, and its class {quote(named)} is unknown; {hint}")
    return pairs


def choose(
    candidates: Sequence[Choice], config: Mapping[str, Any], names: Sequence[str], load: Callable[[Family, Model], Any]
) -> Choice:
    """Return the pair of `candidates` that fits a checkpoint with the tensors `names`.

    `load` loads a description and returns a report. If several pairs fit, prefer the fewest dropped tensors, then the
    smallest difference between the family's fields and the config's. Pairs with equal descriptions (RoBERTa and XLM-R)
    and classes of one family give equal results: the first is returned. Raises ValueError if several families remain.
    """
    fits: list[tuple[tuple[int, int], Choice, Model]] = []
    unnamed = without_label_names(config)  # to save time: hundreds of classes are tried
    for family, architecture in candidates:
        spec = try_describe(family, architecture, unnamed)
        if spec is None or not has_rules_for(family, spec, names):
            continue
        try:
            report = load(family, spec)
        except ValueError:  # more tensors are missing than a load may initialise
            continue
        if report.clean:
            known = {name for name, field in family.fields.items() if isinstance(field, Entry)}
            given = {family.aliases.get(name, name) for name in config}
            nameless = spec.replace(family="", architecture="", source={})
            fits.append(((len(report.dropped), len(known ^ given)), (family, architecture), nameless))
    least = min((score for score, _, _ in fits), default=None)
    alike = {spec: choice for score, choice, spec in reversed(fits) if score == least}
    best = [choice for _, choice, _ in fits if choice in alike.values()]
    if not best and config.get("model_type"):
        return candidates[0]  # loading it will report the mismatch
    if len({family.name for family, _ in best}) == 1:
        return best[0]
    classes = [str(each) for _, each in best]
    matches = " and ".join(classes) or "no known class"
    example = (classes or ["BertForPreTraining"])[0]
    raise ValueError(
        f"the config has no model_type, and the tensors fit {matches}; pass the class, as in architecture={example!r}"
    )


def without_label_names(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config with the number of labels instead of their names."""
    if not isinstance(names := config.get("id2label"), Mapping):
        return config
    others = {name: value for name, value in config.items() if name not in ("id2label", "label2id")}
    return {"num_labels": len(names), **others}


def try_describe(family: Family, architecture: str | None, config: Mapping[str, Any]) -> Model | None:
    """Return the description of a config, or None if this family cannot read it."""
    with warnings.catch_warnings():  # about fields of other families
        warnings.simplefilter("ignore")
        try:
            return family.read(config, architecture)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
            return None


def has_rules_for(family: Family, spec: Model, names: Sequence[str]) -> bool:
    """Whether the family has a rule for every one of these tensors. Nothing is built."""
    current = family.current_names(names)
    prefix = family.prefix_in(current, spec.architecture)
    sources = [source for rule in family.rules(spec) for source in rule.sources]
    templates = [template.replace("~", prefix) for template in (*sources, *family.dropped)]
    plain, patterns = set(templates), [template for template in templates if "{" in template or "*" in template]
    return all(name in plain or any(match(each, name) is not None for each in patterns) for name in current)
