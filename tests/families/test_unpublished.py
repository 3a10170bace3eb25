"""What families without a published class share: saving, counting, tracing, pictures, gradients, graphs, fields."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from catalogue import close, holds
from unpublished import INPUTS, SMALL, SOUND, model

import anyformer as af
from anyformer import families
from anyformer.evaluate import invariants
from anyformer.evaluate.invariants import EXACT
from anyformer.evaluate.model_outputs import outputs
from anyformer.families.base.fields import Entry
from small import filled_with_nan

over_families = pytest.mark.parametrize("name", SMALL)


@over_families
def test_saved_counted_traced_and_drawn(name: str, tmp_path: Path) -> None:
    made, given = model(name), INPUTS[name]()
    holds(invariants.check_saving, made, given, folder=tmp_path / "ours")
    with pytest.raises(ValueError, match="format='anyformer'"):
        af.save(made, tmp_path / "theirs", format="hf")
    assert not (tmp_path / "theirs").exists()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text(json.dumps({**SMALL[name], "model_type": name}))
    shutil.copy(tmp_path / "ours" / "model.safetensors", tmp_path / "theirs")
    with pytest.raises(ValueError, match="checkpoints.*anyformer"):
        af.load(tmp_path / "theirs")
    again = dict(af.load(tmp_path / "ours").named_parameters(remove_duplicate=False))
    assert again.keys() == dict(made.named_parameters(remove_duplicate=False)).keys()
    for tied, owner in made.spec.ties:
        pairs = [(full, full.replace(tied, owner, 1)) for full in again if full.startswith(tied)]
        assert pairs and all(again[a] is again[b] for a, b in pairs), tied
    holds(invariants.check_counting, made, given)
    assert af.count(made.spec).flops(14) > 0
    run = af.trace(made, keep="**.layers.*.attention.op.weights", **given)
    for key, (value, _) in outputs(made, given).items():
        close(run.output[key], value)
    modules = made.named_modules(remove_duplicate=False)
    assert {*run} == {f"{address}.weights" for address, _ in modules if address.endswith(".attention.op")}
    sums = torch.cat([run[address].sum(-1).flatten() for address in run])
    assert bool(((sums - 1).abs().clamp(max=sums.abs()) < 1e-5).all())  # 0 of a token that attends to nothing
    assert "<svg" in af.draw(made.spec).svg


LOSS: dict[str, Any] = {"linformer": "labels", "dmca": "labels", "etc": "labels", "reka": "labels",
                        "limoe": "return_loss", "vatt": "return_loss", "reserve": "return_loss"}  # fmt: skip


@pytest.mark.parametrize("name", LOSS)
def test_n8_gradients_and_recomputation(name: str) -> None:
    given = INPUTS[name]()
    if name == "reserve":  # a loss of sounds needs two
        given["hidden_values"] = torch.randn(2, 30, generator=torch.Generator().manual_seed(3))
        given["input_ids"][1, 7] = 7
    goal = {"labels": given["input_ids"]} if LOSS[name] == "labels" else {"return_loss": True}
    holds(invariants.check_gradients, model(name), {**given, **goal}, EXACT, build=build_in_nan)


def build_in_nan(spec: Any, seed: int) -> Any:
    with filled_with_nan():
        return af.build(spec, seed=seed)


ONE_LAYER: dict[str, dict[str, Any]] = {
    "linformer": {"num_hidden_layers": 1}, "dmca": {"layers": "LM"}, "etc": {"num_hidden_layers": 1},
    "conformer": {"encoder_layers": 1}, "limoe": {"num_hidden_layers": 2, "num_expert_layers": 1},
    "vatt": {"num_hidden_layers": 1}, "reserve": {"num_hidden_layers": 1},
    "reka": {"audio_config": {**SOUND, "encoder_layers": 1}},
}  # fmt: skip


@pytest.mark.slow
@over_families
def test_n9_compiled_and_half_precision(name: str) -> None:
    made, given = model(name, **ONE_LAYER[name]), INPUTS[name]()
    options = {"use_cache": False} if made.spec.writes else {}
    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(made, fullgraph=True, backend="aot_eager", dynamic=False)(**given, **options)
    for key, (value, _) in outputs(made, given, **options).items():
        close(found[key], value)
    for dtype in (torch.bfloat16, torch.float16):
        half = {key: value.to(dtype) if value.is_floating_point() else value for key, value in given.items()}
        for key, (value, _) in outputs(made.to(dtype), half).items():
            assert value.isfinite().all() and value.dtype == dtype, key


# other values than a number's double, which may be none of the field's
OTHER: dict[str, dict[str, Any]] = {
    "linformer": {"sharing": "none", "hidden_act": "relu"}, "etc": {"hidden_act": "relu"},
    "dmca": {"layers": "MLM", "activation_function": "gelu", "pad_token_id": 3, "num_experts": 4},
    "limoe": {"hidden_act": "relu", "num_expert_layers": 4},
    "vatt": {"hidden_act": "relu", "token_drop": 0.25, "num_attention_heads": 8},
    "reserve": {"hidden_act": "relu", "num_attention_heads": 6},
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_every_field_shapes_the_description(name: str) -> None:
    family = families.find(name)
    plain = family.read({}).replace(source={})
    for key, field in family.fields.items():
        value = OTHER[name].get(key)
        if value is None and isinstance(field, Entry):
            match field.default:
                case bool(usual):
                    value = not usual
                case int(usual):
                    value = usual + 20 if key.endswith("_index") else usual * 2 or 1
                case float(usual):
                    value = usual * 2 or 0.35
        if value is None:
            continue
        spec = family.read({key: value})
        assert spec.replace(source={}) != plain, key
        assert field.recover(spec) == value, key


MISPLACED = [
    ("reserve", {"hidden_ids": torch.ones(2, 3).long(), "hidden_mask": None}, "2 spans.*text"),
    ("reserve", {"hidden_values": torch.zeros(2, 30)}, "2 spans.*audio.* 1 .*7"),
    ("reserve", {"pixel_values": torch.zeros(1, 3, 8, 8)}, "size 1 .*4 vectors.*token 4 8 "),
    ("reserve", {"hidden_ids": torch.ones(3, 3)}, "hidden_ids.*integers"),
    ("reka", {"input_features": torch.zeros(1, 5, 6)}, "input_features .*size 1 .*3 vectors.*token 3 6 "),
    ("reka", {"input_features": torch.zeros(2, 5, 8)}, "input_features .*6 frames.*8"),
    ("reka", {"pixel_values": torch.zeros(2, 3, 16, 16)}, "size 2 .*8 vectors.*token 4 4 "),
    ("reka", {"input_ids": None}, "pixel_values.*input_ids"),
    ("vatt", {"pixel_values": None}, "pixel_values.*input_ids.*input_values"),
    ("vatt", {"input_ids": None, "input_values": None}, "pixel_values.*input_ids.*input_values"),
]


@pytest.mark.parametrize(("name", "change", "sentence"), MISPLACED, ids=lambda value: str(value)[:30])
def test_inputs_that_do_not_fit(name: str, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        model(name)(**{**INPUTS[name](), **change})
