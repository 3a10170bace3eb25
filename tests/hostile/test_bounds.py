"""Attacks that once kept a machine busy: each is refused at once, in one line."""

from __future__ import annotations

import io
import json
import math
import struct
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from targets import CONFIGS, model_types

import anyformer as af
from anyformer import families
from anyformer.cli.texts import as_json
from anyformer.data.episodes import Episodes
from anyformer.generation.defaults import NAMES
from anyformer.generation.options import Settings
from anyformer.inputs.audio_features import AudioProcessor

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**30)
ANYTHING = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(NAMES)), ANYTHING, min_size=1, max_size=4))
def test_settings_of_generation_are_judged_whatever_they_are(given: dict[str, Any]) -> None:
    try:
        Settings(**given).check(vocab_size=50)
    except ValueError as error:
        assert str(error) and "\n" not in str(error)


@pytest.mark.parametrize("field, value", [
    ("length_penalty", 10**30), ("suppress_tokens", 5), ("bad_words_ids", [5]), ("eos_token_id", [[1]]),
    ("exponential_decay_length_penalty", 3), ("sequence_bias", [5]), ("stop_strings", 5), ("eos_token_id", 10**30),
])  # fmt: skip
def test_a_stored_setting_of_the_wrong_kind_is_one_line(field: str, value: Any, tmp_path: Path) -> None:
    model = af.build(families.find("gpt2").read(CONFIGS["gpt2"]), seed=0).eval()
    (tmp_path / "generation_config.json").write_text(json.dumps({field: value, "num_beams": 2}))
    model.folder = tmp_path
    with pytest.raises(ValueError, match=field):
        af.generate(model, input_ids=torch.tensor([[1, 2]]), max_new_tokens=4)


MANY = ("layer", "group", "block", "expert", "depth", "repeat")


@pytest.mark.parametrize("model_type", sorted(model_types()))
def test_a_thousand_million_of_anything_is_refused_at_once(model_type: str) -> None:
    family, config = families.find(model_type), model_types()[model_type]
    family.read(config)
    counted = [n for n in family.fields if any(word in n for word in MANY) and isinstance(config.get(n), int)]
    start = time.process_time()
    for name in counted:
        with pytest.raises(ValueError):
            af.count(family.read({**config, name: 10**9}))
    assert time.process_time() - start < 10


def tiny(folder: Path) -> Any:
    model = af.build(families.find("gpt2").read(CONFIGS["gpt2"]), seed=0)
    af.save(model, folder)
    return model


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def rewritten(path: Path, header: dict[str, Any], data: bytes) -> None:
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)


@pytest.mark.slow
def test_many_empty_tensors_are_passed_over_quickly(tmp_path: Path) -> None:
    tiny(tmp_path)
    header, data = header_of(tmp_path / "model.safetensors")
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [len(data), len(data)]}
    rewritten(tmp_path / "model.safetensors", {**header, **{f"x{i}": empty for i in range(90_000)}}, data)
    start = time.process_time()
    af.load(tmp_path)  # they contain no values, so they may be ignored
    assert time.process_time() - start < 10


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_named(number: float, tmp_path: Path) -> None:
    tiny(tmp_path)
    header, data = header_of(tmp_path / "model.safetensors")
    name = "decoder.layers.1.attention.op.q.weight"
    place = header[name]["data_offsets"][1] - 4
    rewritten(tmp_path / "model.safetensors", header, data[:place] + struct.pack("<f", number) + data[place + 4 :])
    with pytest.raises(ValueError, match=f"NaN or infinity in {name}"):
        af.load(tmp_path)
    _, report = af.load(tmp_path, strict=False)
    assert report.nonfinite == (name,) and not report.clean


def test_integers_where_floats_belong_are_named(tmp_path: Path) -> None:
    tiny(tmp_path)
    header, data = header_of(tmp_path / "model.safetensors")
    header["decoder.norm.weight"]["dtype"] = "I32"
    rewritten(tmp_path / "model.safetensors", header, data)
    with pytest.raises(ValueError, match="decoder.norm.weight .*int32"):
        af.load(tmp_path)


@pytest.mark.parametrize("tie", [["head.weight", "nothing"], ["nothing.weight", "head.weight"],
                                 ["decoder.norm.weight", "embedding.tokens.weight"]])  # fmt: skip
def test_ties_of_nothing_are_one_line(tie: list[str], tmp_path: Path) -> None:
    tiny(tmp_path)
    spec = json.loads((tmp_path / "spec.json").read_text())
    (tmp_path / "spec.json").write_text(json.dumps({**spec, "ties": [tie]}))
    with pytest.raises(ValueError, match="ties: "):
        af.load(tmp_path)


def test_more_layers_than_the_file_has_tensors_are_refused_before_they_are_built(tmp_path: Path) -> None:
    tiny(tmp_path)
    spec = json.loads((tmp_path / "spec.json").read_text())
    spec["decoder"]["depth"] = 9999
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    start = time.process_time()
    with pytest.raises(ValueError, match="the description has 9,999 layers"):
        af.load(tmp_path)
    assert time.process_time() - start < 10


def test_json_for_other_programs_has_no_nan() -> None:
    assert as_json({"a": [math.nan, 1.5], "b": {"c": -math.inf}}) == '{"a": [null, 1.5], "b": {"c": null}}'


def test_what_no_file_has_is_bounded_by_what_it_has(tmp_path: Path) -> None:
    """With strict=False a missing tensor is initialised, unless the description makes it larger than any memory."""
    tiny(tmp_path)
    spec = json.loads((tmp_path / "spec.json").read_text())
    spec["embedding"]["position"]["length"] = 10**12
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    with pytest.raises(ValueError, match=r"without embedding.position.weight of shape \(1000000000000, \d+\)"):
        af.load(tmp_path, strict=False)
    spec["embedding"]["position"]["length"] = 99
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    model, report = af.load(tmp_path, strict=False)
    assert len(model.embedding.position.weight) == 99 and set(report.mismatched) == {"embedding.position.weight"}


@pytest.mark.parametrize("field, value", [
    ("feature_extractor_type", ["WhisperFeatureExtractor"]), ("padding_value", {}), ("dither", 10**30),
    ("do_normalize", "yes"), ("chunk_length", 10**6), ("hop_length", 1), ("n_fft", 10**7), ("feature_size", 10**6),
])  # fmt: skip
def test_a_spectrogram_of_anything_is_one_line(field: str, value: Any) -> None:
    config = {"feature_extractor_type": "WhisperFeatureExtractor"}
    assert AudioProcessor.from_config(config).chunk_frames == 3000
    with pytest.raises(ValueError, match=field):
        AudioProcessor.from_config({**config, field: value})


def test_an_array_is_as_large_as_its_archive(tmp_path: Path) -> None:
    """The size that an .npz claims, and its unpacked size, are limited by the size of the file."""
    steps = {"obs": np.zeros((9, 3)), "actions": np.zeros(9), "rewards": np.zeros(9), "episode_offsets": [0, 9]}
    for change, line in (
        ({"obs": np.zeros((10**6, 10))}, "its arrays are larger than 67,108,864 bytes"),
        ({"rewards": np.float64(1)}, r"rewards is float64 \(\), not an array of numbers"),
        ({"actions": np.array(["a"] * 9)}, r"actions is <U1 \(9,\), not an array of numbers"),
    ):
        np.savez_compressed(tmp_path / "x.npz", **{**steps, **change})
        with pytest.raises(ValueError, match=line):
            list(Episodes(path=str(tmp_path / "x.npz")).raw())
    np.savez(tmp_path / "x.npz", **steps)
    raw = (tmp_path / "x.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive, zipfile.ZipFile(io.BytesIO(raw)) as old:
        for name in old.namelist():
            archive.writestr(name, old.read(name).replace(b"(9, 3), }         ", b"(999999999999,), }"))
    with pytest.raises(ValueError, match="obs.npy has too few bytes for float64 .999999999999,."):
        list(Episodes(path=str(tmp_path / "x.npz")).raw())
