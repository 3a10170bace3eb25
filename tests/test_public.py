"""The public contract: the names in `anyformer`, their arguments and results, and that importing them is cheap."""

from __future__ import annotations

import dataclasses
import json
import pickle
import pkgutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.specs.codec import to_json

SMALL = {
    "width": 16, "decoder.depth": 2, "embedding.tokens.vocab_size": 30, "head.vocab_size": 30,
    "embedding.position.length": 12, "decoder.layers.attention.op.num_heads": 2,
    "decoder.layers.attention.op.head_width": 8, "decoder.layers.feedforward.op.width": 32,
}  # fmt: skip


@pytest.fixture(scope="module")
def spec():
    return af.override(af.spec("gpt2"), SMALL)


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


# -- importing --------------------------------------------------------------------------------------------------------

CLOCK = """
import sys, time
start = time.process_time()
import anyformer
taken = time.process_time() - start
heavy = {"torch", "numpy", "rich", "huggingface_hub", "safetensors", "anyformer.specs.part"} & set(sys.modules)
print(taken, sorted(heavy))
"""


def test_import_is_fast_and_light() -> None:
    taken = []
    for _ in range(4):  # the machine may be busy
        seconds, _, heavy = python(CLOCK).partition(" ")
        assert heavy == "[]"
        taken.append(float(seconds))
        if taken[-1] < 0.5:
            break
    assert min(taken) < 0.5


def test_no_module_is_called_like_a_public_function() -> None:
    """Otherwise importing the module would replace the function."""
    for package, names in ((af, af.__all__), (af.tasks, dir(af.tasks))):
        modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
        functions = {name for name in names if not name.startswith("_") and callable(getattr(package, name))}
        assert modules & functions == set()


def test_public_names() -> None:
    assert {"spec", "override", "build", "load", "save", "count", "__version__"} <= set(af.__all__) <= set(dir(af))
    for module in (af.tasks, af.parts, af.look, af.lora, af.adapters):
        assert isinstance(module, types.ModuleType) and module.__doc__
    for name in set(af.__all__) - {"__version__", "tasks", "parts", "look", "lora", "adapters"}:
        assert callable(getattr(af, name)) and getattr(af, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = af.lod


# -- descriptions -----------------------------------------------------------------------------------------------------


def test_spec_by_name_file_and_folder(spec, tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(to_json(spec))
    assert af.spec(str(tmp_path / "spec.json")) == af.spec(tmp_path / "spec.json") == af.spec(tmp_path) == spec
    assert hash(af.spec(tmp_path)) == hash(spec) and af.spec("gpt2") == af.spec("gpt2")
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert json.loads(to_json(spec))["kind"] == "DecoderModel"
    with pytest.raises(ValueError, match="did you mean 'gpt2'"):
        af.spec("gtp2")
    with pytest.raises(FileNotFoundError):
        af.spec(tmp_path / "other.json")


def test_descriptions_are_frozen(spec) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.width = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.decoder.depth = 3


def test_override(spec) -> None:
    other = af.override(spec, {"decoder.depth": 4, "decoder.layers.feedforward.op": {"kind": "GatedMLP", "width": 24}})
    assert (other.decoder.depth, spec.decoder.depth) == (4, 2) and af.override(other, {"decoder.depth": 4}) == other
    assert type(other.decoder.layers.steps["feedforward"].op).__name__ == "GatedMLP"
    one = af.override(spec, {"decoder.layers.1.attention.op.num_heads": 1})
    assert one.decoder.layer(0) == spec.decoder.layers and one.decoder.layer(1) != spec.decoder.layers
    with pytest.raises(ValueError, match="did you mean 'depth'"):
        af.override(spec, {"decoder.dept": 4})
    with pytest.raises(ValueError, match=r"decoder\.depth: expected int"):
        af.override(spec, {"decoder.depth": "four"})
    with pytest.raises(ValueError, match="no layer 2"):
        af.override(spec, {"decoder.layers.2.attention.op.num_heads": 1})


# -- models -----------------------------------------------------------------------------------------------------------


def test_build_is_seeded_and_meta_allocates_nothing(spec) -> None:
    a, b, c = af.build(spec, seed=0), af.build(spec, seed=0), af.build(spec, seed=1)
    assert isinstance(a, torch.nn.Module) and a.spec == spec
    for name, tensor in a.state_dict().items():
        assert torch.equal(tensor, b.state_dict()[name])
    assert not torch.equal(a.embedding.tokens.weight, c.embedding.tokens.weight)
    # weights are seeded by address: a different depth does not change the layers that both models have
    deeper = af.build(af.override(spec, {"decoder.depth": 3}), seed=0)
    name = "decoder.layers.1.attention.op.q.weight"
    assert torch.equal(a.get_parameter(name), deeper.get_parameter(name))
    giant = af.build(af.spec("gpt3-175b"), device="meta")
    assert sum(p.numel() for p in giant.parameters()) == af.count(giant.spec).parameters > 170e9
    with pytest.raises(ValueError, match="model description.*got Stack"):
        af.build(spec.decoder)


def test_the_address_of_a_part_is_the_name_of_its_module(spec) -> None:
    model = af.build(spec)
    assert type(model.get_submodule("decoder.layers.1.feedforward.op")).__name__.startswith("MLP")
    for address in af.count(spec).parts:
        assert model.get_parameter(address) is not None


def test_count(spec) -> None:
    counted, model = af.count(spec), af.build(spec)
    assert counted.parameters == sum(p.numel() for p in model.parameters()) == sum(counted.parts.values())
    assert counted.memory(torch.bfloat16).weights * 2 == counted.memory().total == 4 * counted.parameters
    assert sum(counted.table(2).values()) == counted.parameters
    assert "head.out.weight" not in counted.parts  # tied: counted with the embedding


def test_save_and_load(spec, tmp_path: Path) -> None:
    model = af.build(spec, seed=5).eval()
    af.save(model, tmp_path / "ours")
    af.save(model, str(tmp_path / "hf"), format="hf")
    assert {path.name for path in (tmp_path / "ours").iterdir()} == {"spec.json", "model.safetensors"}
    assert {path.name for path in (tmp_path / "hf").iterdir()} == {"config.json", "model.safetensors"}
    ids = torch.tensor([[1, 2, 3]])
    for folder in ("ours", "hf"):
        again = af.load(tmp_path / folder)
        assert not again.training
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, again.state_dict()[name])
        with torch.no_grad():
            assert torch.equal(again(input_ids=ids).logits, model(input_ids=ids).logits)
    assert af.load(tmp_path / "hf", dtype="bfloat16").dtype == torch.bfloat16
    assert af.load(tmp_path / "hf", dtype=torch.float16, device="cpu").dtype == torch.float16
    model, report = af.load(tmp_path / "hf", strict=False)
    assert report.clean and str(report) == "every tensor fits"
    with pytest.raises(ValueError, match="did you mean 'hf'"):
        af.save(model, tmp_path / "x", format="hff")


def test_save_replaces_only_a_model_in_our_own_layout(spec, tmp_path: Path) -> None:
    model, other = af.build(spec, seed=5), af.build(spec, seed=6)
    af.save(model, tmp_path / "ours")
    af.save(other, tmp_path / "ours")  # twice to our own layout
    af.save(model, tmp_path / "hf", format="hf")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "films.csv").write_text("text,kind\n")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "spec.json").write_text('{"swagger": "2.0"}')  # not a file of anyformer
    for folder in ("hf", "data", "half"):
        before = {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()}
        for format in ("anyformer", "hf"):
            with pytest.raises(ValueError, match=f"{folder} .*other files .*overwrite=True"):
                af.save(other, tmp_path / folder, format=format)
        assert {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()} == before
    af.save(af.load(tmp_path / "hf"), tmp_path / "hf", overwrite=True)  # replaces the files that it was loaded from
    assert {path.name for path in (tmp_path / "hf").iterdir()} == {"spec.json", "model.safetensors"}
    assert torch.equal(af.load(tmp_path / "hf").embedding.tokens.weight, model.embedding.tokens.weight)
    af.save(other, tmp_path / "data", format="hf", overwrite=True)
    assert {path.name for path in (tmp_path / "data").iterdir()} == {"films.csv", "config.json", "model.safetensors"}


def test_outputs_by_attribute_key_and_number(spec) -> None:
    ids = torch.tensor([[1, 2, 3]])
    model = af.build(spec).eval()
    out = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
    assert out.loss is out["loss"] and out[0] is out.loss and out[1] is out.logits
    assert list(out)[:2] == ["loss", "logits"]
    assert out.logits.shape == (1, 3, 30) and out.hidden_states is None
    assert len(model(input_ids=ids, output_hidden_states=True).hidden_states) == 3
    with pytest.raises(TypeError, match="did you mean 'input_ids'"):
        model(input_id=ids)
    with pytest.raises(ValueError, match="token id 30 .* 30"):
        model(input_ids=torch.tensor([[30]]))
    with pytest.raises(ValueError, match="position 12 is beyond"):
        model(input_ids=torch.zeros(1, 13, dtype=torch.long))
