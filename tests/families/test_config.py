"""Every field of every published config class changes the description, is refused, or is declared to change nothing."""

from __future__ import annotations

from typing import Any

import pytest
from catalogue import cases, every_case

from anyformer import families
from anyformer.families.family import COMMON, GENERATION, Inert, Only


def other_values(value: Any) -> list[Any]:
    """Values that differ from a config's own, of a kind it could have."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value * 2, value // 2, value - 1]
    if isinstance(value, float):
        return [value / 2 + 0.003]
    if isinstance(value, str):
        return ["gelu", "relu", "silu", "layer", "group", "relative", "rotary", "auto", "mean", "gated-gelu", "zzz"]
    if isinstance(value, (list, tuple)) and value:
        return [[v + 1 if isinstance(v, int) else f"{v}x" for v in value], list(value[:-1])]
    if isinstance(value, dict):
        return [{"rope_type": "linear", "factor": 2.0, "rope_theta": 77.0}]
    return [7, True, 0.125, "relu", {"rope_type": "linear", "factor": 2.0}]


def test_every_config_field_is_accounted_for() -> None:
    transformers = pytest.importorskip("transformers")
    for model_type, family in families.catalogue().items():
        if not family.architectures:
            continue  # no class is published: descriptions alone
        mine = [case for case in every_case() if case.model_type == model_type]
        fields = set(transformers.AutoConfig.for_model(model_type).to_dict())
        silent = []
        for name in sorted(fields - GENERATION):
            field = family.known.get(family.aliases.get(name, name))
            if isinstance(field, (Inert, Only)):
                continue
            if field is None:
                silent.append(f"{name} (unknown)")
            elif not any(changes(family, case, name) for case in mine):
                silent.append(name)
        assert not silent, f"{model_type}: these config fields change nothing and are not declared inert: {silent}"


def changes(family: Any, case: Any, name: str) -> bool:
    """Whether some other value of the field gives another description, or is refused."""
    config = {**case.config, "architectures": [case.architecture]}
    spec = family.read(config).replace(source={})
    for value in other_values(config.get(name, family.known[family.aliases.get(name, name)].default)):
        try:
            if family.read({**config, name: value}).replace(source={}) != spec:
                return True
        except ValueError:
            return True
    return False


def test_inert_fields_say_why() -> None:
    for family in families.catalogue().values():
        for name, field in {**COMMON, **family.fields}.items():
            assert not isinstance(field, Inert) or field.why, f"{family.name}.{name}"


@pytest.mark.parametrize("field", [n for n, f in COMMON.items() if isinstance(f, Only)])
def test_unsupported_values_are_refused(field: str) -> None:
    for family in families.catalogue().values():
        if isinstance(family.known[field], Only):
            with pytest.raises(ValueError, match=field):
                family.read({field: "something"})


def test_inert_fields_change_no_output() -> None:
    """The declared list is checked too: transformers' own models give the same outputs with another value."""
    import torch
    from catalogue import make_inputs, published
    from huggingface_hub.errors import StrictDataclassError

    seen, untried = set(), []
    for case in cases():
        family = families.find(case.model_type)
        if case.model_type in seen:
            continue
        seen.add(case.model_type)
        model, _ = published(case)
        inputs = make_inputs(case)
        with torch.no_grad():
            expected = model(**inputs)[0]
        for name, field in family.fields.items():
            if not isinstance(field, Inert) or not hasattr(model.config, name) or "honoured by forward" in field.why:
                continue  # a field that asks for more outputs is obeyed: test_moe.py
            untried.append(f"{case.model_type}.{name}")
            for value in other_values(getattr(model.config, name)):
                try:
                    config = type(model.config)(**{**case.config, name: value})
                    twin = type(model)(config).eval()
                    twin.load_state_dict(model.state_dict())
                except (TypeError, ValueError, RuntimeError, StrictDataclassError):  # transformers takes no such value
                    continue
                twin.set_attn_implementation("eager")
                with torch.no_grad():
                    assert torch.allclose(twin(**inputs)[0], expected, atol=1e-5), f"{case.model_type}.{name}={value}"
                untried.pop()
                break
    assert not untried, "no other value of these could be tried"
