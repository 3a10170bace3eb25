"""BEHAVIOUR.md, Loading: every class of every family against the published one."""

from __future__ import annotations

import json
import re
import shutil
import socket
import warnings
from typing import Any

import pytest
import torch
from catalogue import (
    Case,
    cases,
    close,
    every_case,
    family,
    family_and_structure,
    folder,
    is_encoder_decoder,
    is_text,
    make_inputs,
    mask_for,
    ours,
    over,
    over_catalogue,
    published,
    settings,
    shape,
    shared,
    shown,
    spec_of,
    warnings_of,
    weights,
)  # fmt: skip
from safetensors.torch import load_file, save_file
from torch import Tensor

import anyformer as af
from anyformer import families
from anyformer.families.base.fields import Entry, UnknownFieldWarning
from anyformer.specs.codec import from_json, to_json


def compare(theirs, mine, real: Tensor | None = None) -> None:
    """Compare every output field of the published class, tensors and tuples of tensors; with `real` (B, T), only real
    frames."""
    for name, value in theirs.items():
        if isinstance(value, Tensor):
            values, found = (value,), (mine[name],)
        elif isinstance(value, tuple) and value and all(isinstance(v, Tensor) for v in value):
            values, found = value, mine[name]
        elif hasattr(value, "items"):
            compare(value, mine[name], real)
            continue
        else:
            continue
        assert len(values) == len(found), f"{name}: {len(found)} tensors, expected {len(values)}"
        for i, (a, b) in enumerate(zip(found, values, strict=True)):
            if real is not None and a.shape[:2] == real.shape:
                a, b = a[real], b[real]
            try:
                close(a, b)
            except AssertionError as error:
                raise AssertionError(f"{name}[{i}]: {error}") from None


ALL = ("output_hidden_states", "output_attentions")


@over_catalogue("L1", settings, run=True)
def test_l1_outputs_equal_published(case: Case) -> None:
    theirs, mine = published(case)[0], shared(case)
    for labels in (False, True):
        inputs = make_inputs(case, labels=labels)
        with torch.no_grad():
            expected = theirs(**inputs, **shown(case))
            compare(expected, mine(**inputs, **{name: True for name in ALL if name in mine.inputs}))
            fast = mine(**inputs)
        compare({k: v for k, v in expected.items() if k in fast and isinstance(v, Tensor)}, fast)


@over_catalogue("L1", settings, run=True)
def test_l1_outputs_equal_published_with_padding(case: Case) -> None:
    spec, inputs = spec_of(case), make_inputs(case, batch=3)
    mask = mask_for(spec, inputs)
    if mask is None or case.inputs.get("attention_mask", True) is None:  # the published class has no mask of patches
        pytest.skip("this model takes no padding")
    mask[1, ..., -mask.shape[-1] // 3 :] = 0
    inputs["attention_mask"] = mask
    if silent := case.inputs.get("silent", False):  # padding is zero, and outputs at padding are not compared
        inputs["input_features"] = inputs["input_features"] * mask[..., None]
    if is_encoder_decoder(spec):
        inputs["decoder_attention_mask"] = torch.ones_like(inputs["decoder_input_ids"])
        inputs["decoder_attention_mask"][2, -3:] = 0
    with torch.no_grad():
        expected = published(case)[0](**inputs, output_hidden_states=True)
        mine = shared(case)(**inputs, output_hidden_states=True)
    if silent:
        count = torch.tensor([spec.embedding.vectors(int(n)) for n in mask.sum(-1)])
        return compare(expected, mine, torch.arange(expected[0].shape[1]) < count[:, None])
    return compare(expected, mine)


@over_catalogue("L2", shape)  # the names of a family are those of L1 and L5
def test_l2_misfits_are_named(case: Case, tmp_path) -> None:
    shutil.copytree(folder(case), tmp_path / "m")
    file = tmp_path / "m" / weights(case)
    tensors = load_file(file)
    tied = {owner for pair in spec_of(case).ties for owner in pair}
    others = ("embed", "wte", "logits_bias")  # ties or published defaults can replace them
    steps = [name for name in tensors if tensors[name].dim() > 1 and not any(other in name for other in others)]
    gone, bent = [n for n in steps if n not in tied][:2]
    whole = tensors[bent]
    del tensors[gone]
    tensors[bent] = whole[..., :-1].clone()
    tensors["surplus.weight"] = torch.zeros(2)
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ValueError) as error:
        af.load(tmp_path / "m")
    message = str(error.value)
    assert "surplus.weight" in message and "missing" in message and "shape" in message and "\n" not in message
    model, report = af.load(tmp_path / "m", strict=False)
    assert report.unexpected == ("surplus.weight",) and report.mismatched and report.missing
    tensors_of = {**dict(model.named_parameters(remove_duplicate=False)), **model.state_dict()}  # both names of a tie
    for name in (*report.missing, *report.mismatched):
        assert name in message
        assert tensors_of[name].isfinite().all()
    assert all("initialised" in how for how in report.missing.values())
    # whoever wrote the file knows only the published names and shapes
    assert gone in {report.published[name] for name in report.missing}  # and everything tied to it
    assert bent in {report.published[name] for name in report.mismatched}
    shapes = f"the checkpoint has {tuple(tensors[bent].shape)}, the model needs {tuple(whole.shape)})"
    for text in (message, str(report)):
        assert f"missing {gone} (here " in text and "unexpected surplus.weight" in text
        assert re.search(rf"wrong shape {re.escape(bent)} \(here [^;]*; {re.escape(shapes)}", text)


@over_catalogue("L3", settings)
def test_l3_everything_is_filled_and_the_description_survives_json(case: Case) -> None:
    for name, tensor in shared(case).state_dict().items():
        assert tensor.device.type == "cpu", name
        assert not tensor.is_floating_point() or tensor.isfinite().all(), name
    spec = shared(case).spec
    again = from_json(json.loads(to_json(spec)))
    assert again == spec and hash(again) == hash(spec)


def ties(case: Case) -> tuple[tuple[str, str], ...]:
    """Return the ties of a model: many families share them."""
    return spec_of(case).ties


@over_catalogue("L4", ties)
def test_l4_ties_hold(case: Case, tmp_path) -> None:
    spec = spec_of(case)
    if not spec.ties:
        pytest.skip("nothing is tied here")

    def check(model) -> None:
        for name, owner in model.spec.ties:
            assert model.get_parameter(name).data_ptr() == model.get_parameter(owner).data_ptr(), name

    check(af.build(spec, seed=1))
    model = ours(case)
    check(model)
    for form in ("anyformer", "hf"):
        af.save(model, tmp_path / form, format=form)
        check(af.load(tmp_path / form))
    # stored under the other name
    file = tmp_path / "anyformer" / "model.safetensors"
    tensors = load_file(file)
    for name, owner in spec.ties:
        if owner in tensors:
            tensors[name] = tensors.pop(owner)
    save_file(tensors, file)
    again = af.load(tmp_path / "anyformer")
    check(again)
    read = again.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, read[name]), name
    if is_text(spec):
        model.resize_token_embeddings(spec.embedding.tokens.vocab_size + 7)
        check(model)


def undated(config: dict[str, Any]) -> dict[str, Any]:
    """Remove the dtype that transformers writes into nested configs when it opens them."""
    inner = {name: value for name, value in config.items() if isinstance(value, dict)}
    return {**config, **{name: {k: v for k, v in value.items() if k != "dtype"} for name, value in inner.items()}}


OF_TRANSFORMERS = [case for case in cases() if "L5" not in case.skip and case.library == "transformers"]


@over(OF_TRANSFORMERS, family_and_structure)  # others: test_dit.py, test_mvit.py
def test_l5_round_trips(case: Case, tmp_path) -> None:
    import transformers

    model = shared(case)
    af.save(model, tmp_path / "ours")
    again = af.load(tmp_path / "ours")
    assert again.spec.replace(source={}) == model.spec.replace(source={})
    read = again.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, read[name]), name
    af.save(again, tmp_path / "hf", format="hf")
    with warnings_of("transformers") as warnings_seen:
        opened = getattr(transformers, case.architecture)
        theirs, info = opened.from_pretrained(tmp_path / "hf", output_loading_info=True)
    expected, inputs = published(case)[0], make_inputs(case)
    usual = ("must be `None` or an integer", "We set the attention implementation for the sub-config",
             "The explicitly set RoPE scaling factor")  # fmt: skip
    noise = [message for message in warnings_seen if not any(words in message for words in usual)]
    assert not noise and not any(info.values()), (noise, info)
    with torch.device("meta"):
        fresh = opened(type(expected.config).from_pretrained(folder(case)))  # building a model may edit its config
    before = undated(fresh.config.to_dict())  # a forward pass may too, so copy it from the live model
    after = undated(theirs.config.to_dict())
    for name in before.keys() | after.keys():
        assert name in ("_name_or_path", "dtype") or before.get(name) == after.get(name), name
    state = theirs.state_dict()
    for name, tensor in expected.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    with torch.no_grad():
        theirs.eval().set_attn_implementation("eager")
        compare(expected(**inputs), theirs(**inputs))
    stored, loaded = load_file(folder(case) / "model.safetensors"), load_file(tmp_path / "hf" / "model.safetensors")
    assert stored.keys() == loaded.keys()


@over_catalogue("L6", shape)
def test_l6_no_socket_offline_and_shards_stream(case: Case, tmp_path, monkeypatch) -> None:
    def refuse(*args, **kwargs):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    whole = ours(case, offline=True)
    from anyformer.weights.io import Checkpoint, write_checkpoint

    stem = weights(case).removesuffix(".safetensors")
    with Checkpoint(folder(case), stem=stem) as checkpoint:
        stored = [(n, checkpoint.read(n)) for n in checkpoint.names]
        write_checkpoint(tmp_path, stored, shard_bytes=20_000, stem=stem)
    shutil.copyfile(folder(case) / "config.json", tmp_path / "config.json")
    assert (tmp_path / f"{stem}.safetensors.index.json").is_file()
    expected = whole.state_dict()
    for name, tensor in af.load(tmp_path, offline=True).state_dict().items():
        assert torch.equal(tensor, expected[name]), name


@over_catalogue("L7", family)
def test_l7_a_wrong_value_is_refused(case: Case) -> None:
    config = json.loads((folder(case) / "config.json").read_text())
    family = families.find(case.model_type)
    with pytest.raises(ValueError, match=case.architecture):
        family.read({**config, "architectures": [case.architecture + "s"]})
    with pytest.raises(ValueError, match=case.model_type):
        families.find(case.model_type + "x")
    usual = ("gelu", "gelu_new", "silu")
    unread = () if case.architecture.endswith("ForMultipleChoice") else ("summary_activation",)  # ELECTRA's others
    for name in (n for n, f in family.fields.items() if isinstance(f, Entry) and f.default in usual):
        if name in unread:
            continue
        with pytest.raises(ValueError, match=r"did you mean 'gelu'"):
            family.read({**config, name: "gelv"})


@over_catalogue("L7", shape)
def test_l7_an_unknown_field_is_kept_and_named_in_one_warning(case: Case, tmp_path) -> None:
    shutil.copytree(folder(case), tmp_path / "m")
    config = json.loads((folder(case) / "config.json").read_text())
    strange = {"condition_on_chain": True, "adapter": {"dim": [64, None, 1e400]}, "output\npast": float("nan")}
    (tmp_path / "m" / "config.json").write_text(json.dumps({**config, **strange}))
    with pytest.warns(UnknownFieldWarning) as seen:
        model = af.load(tmp_path / "m")
    (warning,) = [each for each in seen if each.category is UnknownFieldWarning]
    assert all(repr(name) in str(warning.message) for name in strange) and "\n" not in str(warning.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        af.save(model, tmp_path / "hf", format="hf")
    written = json.loads((tmp_path / "hf" / "config.json").read_text(), parse_constant=str)  # JSON has no infinity
    infinite = {"dim": [64, None, {"__float__": "Infinity"}]}
    expected = {"condition_on_chain": True, "adapter": infinite, "output\npast": {"__float__": "NaN"}}
    assert {name: written[name] for name in strange} == expected
    assert model.spec.replace(source={}) == shared(case).spec.replace(source={})


@over_catalogue("L1", shape)  # N2 loads a case of every structure in bfloat16 and checks the dtype of its outputs
def test_dtype_on_load(case: Case) -> None:
    for dtype in ("bfloat16", torch.float16):
        model = ours(case, dtype=dtype)
        wanted = torch.bfloat16 if dtype == "bfloat16" else dtype
        assert all(p.dtype == wanted for p in model.parameters())
    assert shared(case).dtype == torch.float32


def test_every_class_has_a_case() -> None:
    seen = {case.architecture for case in every_case()}
    for each in families.catalogue().values():
        assert set(each.architectures) <= seen, f"{each.name}: {set(each.architectures) - seen}"
