"""Every field of every published config class changes the description, is refused, or is declared to change nothing."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from catalogue import cases, every_case, spec_of

import anyformer as af
from anyformer import families
from anyformer.families.base.family import Family
from anyformer.families.base.fields import (
    COMMON,
    GENERATION,
    Entry,
    Fixed,
    Ignored,
    Removed,
    UnknownFieldWarning,
    allowed_words,
)


def other_values(value: Any) -> list[Any]:
    """Return values that differ from the config's, of a type it could have."""
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


def known_to(model_type: str) -> set[str]:
    """Return what a published class knows: its fields, their aliases, and every field that published code reads."""
    import transformers

    kind = transformers.CONFIG_MAPPING[model_type]
    home, general = Path(inspect.getfile(kind)).parent, Path(transformers.__file__).parent
    files = [*home.glob("configuration_*.py"), *home.glob("modeling_*.py")]
    files += [general / name for name in ("configuration_utils.py", "modeling_utils.py", "modeling_rope_utils.py")]
    files += [general / "utils" / "output_capturing.py", general / "loss" / "loss_utils.py"]
    code = "".join(file.read_text() for file in files)
    read = re.findall(r"""config\.(\w+)|getattr\([\w.]*config, "(\w+)"|kwargs\.\w+\("(\w+)\"""", code)
    return {f.name for f in dataclasses.fields(kind)}.union(kind.attribute_map, *read)


def published_families() -> list[Any]:
    found = [family for family in families.catalogue().values() if family.library == "transformers"]
    return [family for family in found if family.architectures]


@pytest.mark.parametrize("family", published_families(), ids=lambda family: family.name)
def test_every_config_field_is_accounted_for(family: Any) -> None:
    """Fields of the class and of all classes, and their aliases: all are in the table, and none is without effect."""
    transformers = pytest.importorskip("transformers")
    mine = [case for case in every_case() if case.model_type == family.name]
    kind = transformers.CONFIG_MAPPING[family.name]
    fields = set(kind().to_dict()) | {f.name for f in dataclasses.fields(kind)} | set(kind.attribute_map)
    silent = []
    for name in sorted(fields - GENERATION):
        field = family.all_fields.get(family.aliases.get(name, name))
        if field is None or isinstance(field, Removed):
            silent.append(f"{name} (unknown)")
        elif isinstance(field, Entry) and not any(changes(family, case, name) for case in mine):
            silent.append(name)
    assert not silent, f"{family.name}: these config fields change nothing and are not declared inert: {silent}"


@pytest.mark.parametrize("family", published_families(), ids=lambda family: family.name)
def test_only_what_published_code_reads_is_refused(family: Any) -> None:
    """A value that transformers supports may be refused; a field that it never reads must not stop a load."""
    known = known_to(family.name)
    for name, field in family.all_fields.items():
        if isinstance(field, Removed):
            assert name not in known, f"{family.name}.{name}: published code reads it"
        elif isinstance(field, Fixed):
            assert name in known, f"{family.name}.{name}: published code reads no such field"


def test_generation_settings_are_those_of_published_classes() -> None:
    transformers = pytest.importorskip("transformers")
    left = set(transformers.GenerationConfig._get_default_generation_params()) - GENERATION - set(COMMON)
    assert not left


def changes(family: Any, case: Any, name: str) -> bool:
    """Whether some other value of the field gives a different description or is refused."""
    config = {**case.config, "architectures": [case.architecture]}
    spec = spec_of(case).replace(source={})
    for value in other_values(config.get(name, family.all_fields[family.aliases.get(name, name)].default)):
        try:
            if family.read({**config, name: value}).replace(source={}) != spec:
                return True
        except ValueError:
            return True
    return False


@pytest.mark.parametrize("family", published_families(), ids=lambda family: family.name)
def test_what_a_config_does_not_say_is_the_published_default(family: Any) -> None:
    """Also if the published defaults are refused."""
    transformers = pytest.importorskip("transformers")

    def described(config: dict[str, Any]) -> Any:
        try:
            return family.read({**config, "architectures": [family.architectures[0]]}).replace(source={})
        except ValueError as error:
            return str(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownFieldWarning)
        assert described({}) == described(transformers.CONFIG_MAPPING[family.name]().to_dict())


def test_flags_of_every_config_have_the_published_defaults() -> None:
    transformers = pytest.importorskip("transformers")
    published = transformers.PretrainedConfig()
    flags = {name: field.default for name, field in COMMON.items() if isinstance(field.default, bool)}
    found = {name: getattr(published, name) for name in flags if hasattr(published, name)}
    assert "return_dict" in found and found.items() <= flags.items()


def test_inert_fields_say_why() -> None:
    for family in families.catalogue().values():
        for name, field in {**COMMON, **family.fields}.items():
            assert isinstance(field, Entry) or field.why, f"{family.name}.{name}"


@pytest.mark.parametrize("family", published_families(), ids=lambda family: family.name)
def test_unsupported_values_are_refused(family: Any) -> None:
    config = next(case.config for case in every_case() if case.model_type == family.name)
    plain = family.read(config).replace(source={})
    gone = {name: "something" for name, field in family.all_fields.items() if isinstance(field, Removed)}
    with pytest.warns(UnknownFieldWarning) as seen:
        spec = family.read({**config, **gone})
    message = " ".join(str(each.message) for each in seen)
    assert spec.replace(source={}) == plain and all(repr(name) in message for name in gone)
    assert family.write(spec).items() >= gone.items()
    for name, field in family.all_fields.items():
        if isinstance(field, Fixed) and not isinstance(field, Removed):
            with pytest.raises(ValueError, match=f"{name}='something' .*valid: "):
                family.read({name: "something"})


@pytest.mark.slow
def test_inert_fields_change_no_output() -> None:
    """Check the declared list: transformers' models give equal outputs with another value."""
    import torch
    from catalogue import make_inputs, published
    from huggingface_hub.errors import StrictDataclassError

    seen, untried = set(), []
    for case in (case for case in cases() if case.library == "transformers"):
        family = families.find(case.model_type)
        if case.model_type in seen:
            continue
        seen.add(case.model_type)
        model, _ = published(case)
        inputs = make_inputs(case)
        with torch.no_grad():
            expected = model(**inputs)[0]
        for name, field in family.fields.items():
            if not isinstance(field, Ignored) or not hasattr(model.config, name) or "read by forward" in field.why:
                continue  # a field that requests more outputs is obeyed: test_moe.py
            untried.append(f"{case.model_type}.{name}")
            for value in other_values(getattr(model.config, name)):
                try:
                    config = type(model.config)(**{**case.config, name: value})
                    twin = type(model)(config).eval()
                    twin.load_state_dict(model.state_dict())
                except (TypeError, ValueError, RuntimeError, StrictDataclassError):  # transformers refuses it
                    continue
                twin.set_attn_implementation("eager")
                with torch.no_grad():
                    assert torch.allclose(twin(**inputs)[0], expected, atol=1e-5), f"{case.model_type}.{name}={value}"
                untried.pop()
                break
    assert not untried, "no other value of these could be tried"


OP = "decoder.layers.attention.op"


@pytest.mark.parametrize("name, changes, reason", [
    ("gpt2", {"decoder.norm": {"kind": "RMSNorm"}}, r"decoder\.norm .*RMSNorm.*LayerNorm"),
    ("gpt2", {f"{OP}.position": {"kind": "Rope"}}, r"attention\.op\.position .*Rope.*None"),
    ("gpt2", {"embedding.position": None}, r"embedding\.position .*None.*Learned"),
    ("gpt2", {"head.bias": True}, r"head\.bias .*True.*False"),
    ("gpt2", {"decoder.layers.feedforward.op": {"kind": "GatedMLP", "width": 8}}, r"feedforward\.op .*GatedMLP.* MLP"),
    ("llama3-8b", {f"{OP}.bias": "q"}, r"attention\.op\.bias .*'q'.*''"),
    ("llama3-8b", {f"{OP}.position": None}, r"attention\.op\.position .*None.*Rope"),
], ids=str)  # fmt: skip
def test_an_export_that_cannot_be_says_the_real_reason(name: str, changes: dict[str, Any], reason: str) -> None:
    """The message names the Part that no config can express, not a number that follows from it."""
    with pytest.raises(ValueError, match=reason) as caught:
        families.find(af.spec(name).family).write(af.override(af.spec(name), changes))
    assert "format='anyformer'" in str(caught.value)


def test_an_export_recovers_the_config_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of an export describes the recovered config; it does not recover the config from that again."""
    recovered, recover = [], Family.recover
    monkeypatch.setattr(Family, "recover", lambda family, spec: recovered.append(spec) or recover(family, spec))
    spec = families.find("gpt2").read({"n_layer": 2})
    assert recovered.count(spec.replace(source={})) == 1
    recovered.clear()
    assert families.find("gpt2").write(spec)["n_layer"] == 2
    assert recovered == [spec]


def test_special_tokens_outside_the_vocabulary_are_none(tmp_path: Path) -> None:
    """The published class would insert its defaults, and warn."""
    transformers = pytest.importorskip("transformers")
    small = {"embedding.tokens.vocab_size": 30, "head.vocab_size": 30, "decoder.depth": 1, "width": 12,
             "decoder.layers.attention.op.head_width": 1}  # fmt: skip
    for changes, wanted in (({}, None), ({"source": {"bos_token_id": 3, "eos_token_id": 4}}, 3)):
        af.save(af.build(af.override(af.spec("gpt2"), {**small, **changes})), tmp_path / str(wanted), format="hf")
        assert transformers.AutoConfig.from_pretrained(tmp_path / str(wanted)).bos_token_id == wanted
        assert af.spec(tmp_path / str(wanted)).source["bos_token_id"] == wanted
    family = families.find("gpt2")
    assert family.write(af.spec("gpt2")).get("bos_token_id", 50256) == 50256
    assert family.write(family.read({"vocab_size": 50256}).replace(source={}))["bos_token_id"] is None  # one too few


@pytest.mark.parametrize("family", families.catalogue().values(), ids=lambda family: family.name)
def test_a_word_that_no_class_knows_is_refused_also_where_nothing_reads_it(family: Any) -> None:
    """A ViT that classifies has no pooler, but its pooler_act must be valid too."""
    fields = {name: field for name, field in family.fields.items() if isinstance(field, Entry)}
    named = [name for name, field in fields.items() if allowed_words(name, field)]
    for name, architecture in itertools.product(named, family.architectures or (None,)):
        with pytest.raises(ValueError, match=rf"^{family.name} config: .*(is not valid|is not supported|unknown)"):
            family.read({name: "nonsense"}, architecture)


@pytest.mark.parametrize(("family", "field", "why"), [
    ("vit", {"pooler_act": "nonsense"}, "pooler_act='nonsense' is not valid; valid: "),
    ("vit", {"pooler_act": "gelu_"}, "pooler_act='gelu_' is not valid; did you mean 'gelu'"),
    ("vit", {"pooler_output_size": "wide"}, "pooler_output_size='wide' is not a number"),
    ("vit", {"tie_last_hidden_states": "yes"}, "tie_last_hidden_states='yes' is not a boolean"),
    ("gpt2", {"classifier_dropout": "much"}, "classifier_dropout='much' is not a number"),
    *[("gpt2", {"n_layer": value}, f"n_layer={value!r} is not a number") for value in (True, "12", {})],
])  # fmt: skip
def test_fields_of_other_classes_are_checked(family: str, field: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError) as refused:
        families.find(family).read(field)  # of a classifier or a language model
    assert str(refused.value).startswith(f"{family} config: {why}")


@pytest.mark.parametrize(("family", "field", "why"), [
    ("llama", {"rms_norm_eps": -1}, "rms_norm_eps is -1.0; it must be at least 0"),
    ("bloom", {"architectures": ["BloomForTokenClassification"], "classifier_dropout": False},
     "classifier_dropout: expected float, got False"),  # equal to the template's 0.0, and not a number
])  # fmt: skip
def test_a_value_that_does_not_fit_is_refused_by_its_published_name(family: str, field: Any, why: str) -> None:
    with pytest.raises(ValueError) as refused:
        families.find(family).read(field)
    assert str(refused.value) == f"{family} config: {why}"


def test_how_weights_would_start_does_not_stop_an_export() -> None:
    """Initialisers of CLIP and wav2vec 2.0 depend on the depth: a description with a changed depth keeps the old
    ones."""
    clip = af.override(af.spec("clip-b32"), {"text.encoder.depth": 2})
    config = families.find("clip").write(clip)
    assert (
        config["text_config"]["num_hidden_layers"] == 2
        and clip.text.init != families.find("clip").read(config).text.init
    )
    assert families.find("wav2vec2").write(af.override(af.spec("wav2vec2-base"), {"encoder.depth": 3}))


def test_a_refused_export_names_where_the_descriptions_part() -> None:
    cut = af.override(af.spec("deepseek-v2-lite"), {"decoder.depth": 12})
    with pytest.raises(ValueError, match=r"decoder\.pattern is \('dense', .*: \('dense', "):
        families.find("deepseek_v2").write(cut)


def test_a_step_that_a_field_adds_is_found_in_the_description() -> None:
    family = families.find("gpt2")
    for value in (True, False):
        spec = family.read({"n_layer": 1, "n_embd": 8, "n_head": 2, "add_cross_attention": value})
        assert family.write(spec.replace(source={}))["add_cross_attention"] is value
