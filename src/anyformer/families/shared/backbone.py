"""The Backbone class of image encoders, which returns the states of chosen layers as feature maps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from anyformer.families.base.fields import Absent
from anyformer.families.base.template import Class, Config, Entry, entry, rules_of
from anyformer.parts import ChosenLayers, FeatureMapsHead, Model, Norm, Unused
from anyformer.specs.addresses import edit, value_at
from anyformer.specs.messages import quote
from anyformer.weights.rules import Rule

LAYERS, NORM = "encoder.neck[ChosenLayers].layers", "encoder.neck.norm"


def names(layers: Iterable[int]) -> list[str]:
    return [f"stage{i}" if i else "stem" for i in layers]


def chosen_layers(given: Any, c: Config) -> tuple[int, ...]:
    """Return the layers that `out_features` names or `out_indices` counts; if neither is given, the last one."""
    depth: int = c.num_hidden_layers
    known: dict[Any, int] = {name: i for i, name in enumerate(names(range(depth + 1)))}
    known |= {i: i % (depth + 1) for i in range(-depth - 1, depth + 1)}
    found = []
    for field in (c.out_features, c.out_indices):
        for name in field or ():
            if isinstance(name, bool) or name not in known:
                valid = f"stem, stage1 to stage{depth} in out_features, 0 to {depth} in out_indices"
                raise ValueError(f"layer {quote(name)} does not exist; valid: {valid}")
        found += [] if field is None else [tuple(known[name] for name in field)]
    if len({*found}) > 1:
        raise ValueError(f"out_features {c.out_features} and out_indices {c.out_indices} are different layers")
    return found[0] if found else (depth,)


def is_normed(spec: Model) -> bool:
    if not isinstance(value_at(spec, "encoder.neck"), ChosenLayers):
        raise Absent
    return not isinstance(value_at(spec, NORM), Unused)


def build_norm(spec: Model, normed: bool, c: Config) -> Model:
    """Without `apply_layernorm`, files contain the norm, but it is not used."""
    if normed or not isinstance(spec.head, FeatureMapsHead):
        return spec
    return edit(spec, {NORM: Unused(part=value_at(spec, NORM))})


def norm_rules(theirs: str, spec: Model) -> list[Rule]:
    return [*rules_of({theirs: NORM if is_normed(spec) else f"{NORM}.part"}, spec)]


def backbone_class(norm: Norm, width: int, depth: int) -> Class:
    neck = ChosenLayers(layers=(depth,), norm=norm)
    changes = {"encoder.norm": None, "encoder.neck": neck}
    return Class(FeatureMapsHead(width=width), prefix="", changes=changes, weights={"~layernorm": norm_rules})


FIELDS: dict[str, Any] = {
    "hidden_size": ("width", "head[FeatureMapsHead].width"),
    "layer_norm_eps": ("encoder.norm.eps", "encoder.layers.*.pre_norm.eps", f"{NORM}.eps"),
    "out_features": entry(LAYERS, default=None, read=chosen_layers, write=names),
    "out_indices": entry(LAYERS, default=None, read=chosen_layers, write=list),
    "apply_layernorm": Entry(True, is_normed, build=build_norm),
    "reshape_hidden_states": "head[FeatureMapsHead].images",
}
