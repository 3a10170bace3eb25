"""Models of a text and an image tower (CLIP, SigLIP). Each tower is also a family; its config and weights are nested in
those of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from anyformer.families.base.family import Family
from anyformer.families.base.fields import Absent, Ignored
from anyformer.families.base.template import Class
from anyformer.families.shared.nested import nested_config, nested_rules, read_nested
from anyformer.parts import EncoderModel, Model, TwoTowerModel
from anyformer.specs.addresses import value_at
from anyformer.weights.rules import Rule

DROPPED = tuple(f"{tower}embeddings.position_ids" for tower in ("text_model.", "vision_model.", "~"))


def read_tower(name: str, config: Any, family: Family, architecture: str, **known: Any) -> EncoderModel:
    spec = read_nested(name, config, family, architecture, **known)
    assert isinstance(spec, EncoderModel)
    return spec


def tower_of(name: str) -> Callable[[Model], Model]:
    def read(spec: Model) -> Model:
        if isinstance(spec, TwoTowerModel):
            return getattr(spec, name)
        if (name == "text") != ("input_ids" in value_at(spec, "embedding").inputs):
            raise Absent
        return spec

    return read


def tower_configs(text: Family, image: Family) -> dict[str, Any]:
    return {
        "text_config": nested_config(text, tower_of("text"), {}),
        "vision_config": nested_config(image, tower_of("image"), {}),
        "tie_last_hidden_states": Ignored(None, "the towers' configs decide"),
    }


def tower_classes(text: Family, image: Family, both: str, classifier: str) -> dict[str, Class]:
    """Return the classes: the model `both`, the image `classifier`, and the classes of each tower."""
    return {
        both: Class(prefix=""),
        classifier: Class(prefix="vision_model."),
        **dict.fromkeys(text.architectures, Class(prefix="text_model.")),
        **dict.fromkeys(image.architectures, Class(prefix="vision_model.")),
    }


def tower_rules(
    spec: TwoTowerModel | EncoderModel, text: Family, image: Family, head: Iterable[Rule], alone: Iterable[Rule]
) -> list[Rule]:
    """Return the rules of both towers and the `head` that compares them; for a single tower, its rules and `alone`."""
    if isinstance(spec, TwoTowerModel):
        return [
            *head,
            *nested_rules(text.rules(spec.text), "text_model.", ours="text."),
            *nested_rules(image.rules(spec.image), "vision_model.", ours="image."),
        ]
    family = text if "input_ids" in spec.embedding.inputs else image
    return [*family.rules(spec), *alone]
