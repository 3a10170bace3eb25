"""Config values of image, speech and other models that no case of the catalogue has: the published class gives the same
result for config.json and for the config that we write."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from catalogue import close, every_case, make_inputs, randomise, spec_of

import anyformer as af
from anyformer import families
from anyformer.families.base.fields import UnknownFieldWarning

transformers = pytest.importorskip("transformers")

FIRST = {case.architecture: case for case in reversed(every_case())}  # the first case of each class

# class, config values in addition to its first case; a path leads into the config of a tower
VALUES = [
    ("ParakeetForCTC", {"encoder_config.head_dim": 6}), ("ParakeetForCTC", {"encoder_config.num_attention_heads": 3}),
    ("ParakeetEncoder", {"head_dim": 12, "num_key_value_heads": 2, "tie_last_hidden_states": False}),
    ("ParakeetForCTC", {"tie_last_hidden_states": False}), ("ParakeetEncoder", {"dropout_positions": 0.3}),
    ("CLIPModel", {"text_config.projection_dim": None, "vision_config.projection_dim": 0}),
    ("CLIPModel", {"text_config.num_hidden_layers": 0, "tie_last_hidden_states": False}),
    ("CLIPVisionModel", {"num_hidden_layers": 0, "initializer_factor": 0.0}),
    ("SwinForImageClassification", {"hidden_size": 7, "num_layers": 3, "num_heads": [2, 4, 8]}),
    ("Swinv2Model", {"depths": [2], "hidden_size": 24, "num_hidden_layers": 2}),
    ("ResNetForImageClassification", {"depths": [0, 2, 2]}),
    ("Wav2Vec2ForCTC", {"pad_token_id": None}),
    ("LlavaForConditionalGeneration", {"tie_last_hidden_states": False}),
]  # fmt: skip


def changed(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    config = copy.deepcopy(config)
    for path, value in changes.items():
        *outer, name = path.split(".")
        inner = config
        for each in outer:
            inner = inner[each]
        inner[name] = value
    return config


@pytest.mark.parametrize(("architecture", "changes"), VALUES, ids=str)
def test_other_values_are_read_as_published(architecture: str, changes: dict[str, Any], tmp_path: Path) -> None:
    case = FIRST[architecture]
    config = {**changed(case.config, changes), "model_type": case.model_type, "architectures": [architecture]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    kind = getattr(transformers, architecture)
    theirs = kind(transformers.AutoConfig.from_pretrained(tmp_path)).eval()
    randomise(theirs)
    theirs.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownFieldWarning)
        ours = af.load(tmp_path)
        af.save(ours, tmp_path / "back", format="hf")
    again = kind.from_pretrained(tmp_path / "back")
    inputs = make_inputs(case)
    with torch.no_grad():
        expected = {name: value for name, value in theirs(**inputs).items() if isinstance(value, torch.Tensor)}
        for model in (ours, again):
            found = model(**inputs)
            for name, value in expected.items():
                close(found[name], value)


NOTHING = [
    ("BertModel", "num_attention_heads", 0), ("GPT2LMHeadModel", "n_head", 0),
    ("LlamaForCausalLM", "num_attention_heads", 0),
    ("WhisperModel", "decoder_attention_heads", 0), ("Wav2Vec2Model", "adapter_kernel_size", 0),
    ("T5Model", "feed_forward_proj", None), ("Swinv2Model", "patch_size", []),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "name", "value"), NOTHING, ids=str)
def test_values_of_which_nothing_can_be_made_are_named(architecture: str, name: str, value: Any) -> None:
    case = FIRST[architecture]
    with pytest.raises(ValueError, match=name) as error:
        families.find(case.model_type).read({**case.config, name: value, "architectures": [architecture]})
    assert "\n" not in str(error.value)


def both_models(folder: Path, architecture: str, **changes: Any) -> tuple[Any, Any, dict[str, torch.Tensor]]:
    """Return the published model of a class's first case with other values, ours, and their inputs."""
    case = FIRST[architecture]
    config = {**case.config, **changes, "model_type": case.model_type, "architectures": [architecture]}
    (folder / "config.json").write_text(json.dumps(config))
    theirs = getattr(transformers, architecture)(transformers.AutoConfig.from_pretrained(folder)).eval()
    randomise(theirs)
    theirs.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return theirs, af.load(folder), make_inputs(case)


def test_states_that_are_averaged_are_part_of_the_answer(tmp_path: Path) -> None:
    theirs, ours, inputs = both_models(tmp_path, "WhisperForAudioClassification", use_weighted_layer_sum=True)
    with torch.no_grad():
        for asked in ({}, {"output_hidden_states": False}):
            expected, found = theirs(**inputs, **asked), ours(**inputs, **asked)
            assert len(found.hidden_states) == len(expected.hidden_states)
            for state, same in zip(found.hidden_states, expected.hidden_states, strict=True):
                close(state, same)


def test_a_tuple_of_what_is_done_holds_what_is_published(tmp_path: Path) -> None:
    theirs, ours, inputs = both_models(tmp_path, "DecisionTransformerModel", return_dict=False)
    with torch.no_grad():
        expected, found = theirs(**inputs), ours(**inputs)
    assert isinstance(found, tuple) and len(found) == len(expected)
    for value, same in zip(found, expected, strict=True):
        close(value, same)


@pytest.mark.parametrize(
    ("architecture", "changes", "name"),
    [("GPT2LMHeadModel", {}, "n_inner"), ("DecisionTransformerModel", {"n_inner": None}, "n_inner"),
     ("DiTTransformer2DModel", {"out_channels": None}, "out_channels")], ids=str,
)  # fmt: skip
def test_what_is_left_open_stays_open(architecture: str, changes: dict[str, Any], name: str) -> None:
    case = FIRST[architecture]
    family = families.find(case.model_type)
    config = {**case.config, **changes}
    config.pop(name, None)
    for field in ({}, {name: None}, {name: 128}):
        spec = family.read({**config, **field, "architectures": [architecture]})
        assert family.write(spec)[name] == field.get(name)


def test_what_a_perceiver_reads_has_two_names(tmp_path: Path) -> None:
    theirs, ours, given = both_models(tmp_path, "PerceiverForSequenceClassification")
    ids = given["input_ids"]
    with torch.no_grad():
        close(ours(inputs=ids).logits, theirs(inputs=ids).logits)
        close(ours(inputs=ids).logits, ours(input_ids=ids, inputs=None).logits)
    with pytest.raises(ValueError, match="^inputs and input_ids are two names"):
        ours(inputs=ids, input_ids=ids)


@pytest.mark.parametrize("architecture", ["LlavaModel", "ParakeetForCTC", "CLIPForImageClassification"])
def test_what_is_shown_unasked_the_inner_config_says(architecture: str, tmp_path: Path) -> None:
    inner = {"LlavaModel": "text_config", "ParakeetForCTC": "encoder_config"}.get(architecture, "vision_config")
    shown = {"output_hidden_states": True}
    for name, changes in (("inner", {inner: {**FIRST[architecture].config[inner], **shown}}), ("outer", shown)):
        (tmp_path / name).mkdir()
        theirs, ours, inputs = both_models(tmp_path / name, architecture, **changes)
        with torch.no_grad():
            expected, found = theirs(**inputs).get("hidden_states"), ours(**inputs).get("hidden_states")
        assert (expected is None) == (found is None) == (name == "outer")
        for state, same in zip(found or (), expected or (), strict=True):
            close(state, same)


@pytest.mark.parametrize("architecture", ["LongformerModel", "Wav2Vec2ForXVector", "WhisperForAudioClassification"])
def test_nothing_else_is_shown_unasked(architecture: str) -> None:
    assert not spec_of(FIRST[architecture]).skeleton().always
