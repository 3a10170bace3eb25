"""The JSON schema accepts the same run.json files as `read_run`; errors name the path of the mistake."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import anyformer as af
from anyformer import cli
from anyformer.objectives.classify import Classify
from anyformer.recipes import recipe, recipes
from anyformer.specs.codec import to_json
from anyformer.train.optim import Muon
from anyformer.train.run import Pretrained, Run, read_run
from anyformer.train.run_schema import schema
from anyformer.transforms.lora import LoRA

sys.path.insert(0, str(Path(__file__).parent))
import runs

jsonschema = pytest.importorskip("jsonschema")


@pytest.fixture(scope="module")
def judge() -> Any:
    made = schema()
    jsonschema.Draft202012Validator.check_schema(made)
    return jsonschema.Draft202012Validator(made)


@pytest.fixture
def good(tmp_path: Path) -> Run:
    return runs.run_of(
        tmp_path, objective=Classify(labels=("no", "yes", "maybe")), optimizer=Muon(), lora=LoRA(),
        model=af.override(af.spec("gpt2"), {"decoder.depth": 2}),
    )  # fmt: skip


def test_every_recipe_is_valid(judge: Any) -> None:
    for name in recipes():
        assert judge.is_valid(json.loads(to_json(recipe(name)))), name


def test_what_a_person_writes_is_valid_and_read(judge: Any, good: Run, tmp_path: Path) -> None:
    """Kinds are left out if only one fits; a model by name, values by address, and the $schema key."""
    written = json.loads(to_json(good))
    for name in ("data", "batch", "evaluate", "keep", "lora"):
        del written[name]["kind"]
    del written["kind"]
    written |= {"$schema": "./run.schema.json", "model": "gpt2", "set": {"model.decoder.depth": 2}}
    assert judge.is_valid(written)
    (tmp_path / "run.json").write_text(json.dumps(written))
    assert read_run(tmp_path / "run.json") == good
    further = good.replace(model=Pretrained(path="somewhere", labels=("a", "b")))
    assert judge.is_valid(json.loads(to_json(further)))


# (path, value or None to remove it, words of the message)
WRONG: list[tuple[str, Any, str]] = [
    ("anyformer", 2, "not a description of format 1: 'anyformer' is 2"),
    ("anyformer", None, "'anyformer' is None"),
    ("stepps", 3, "Run has no field 'stepps'; did you mean 'steps'?"),
    ("steps", None, "Run needs steps"),
    ("steps", "many", "run.json: steps: expected int, got 'many'"),
    ("steps", 1.5, "run.json: steps: expected int, got 1.5"),
    ("precision", "bf17", "run.json: precision: 'bf17' is not valid; did you mean 'bf16'?"),
    ("clip", True, "run.json: clip: expected float | None, got True"),
    ("compile", "yes", "run.json: compile: expected bool | 'whole', got 'yes'"),
    ("recompute", "decoder", "run.json: recompute: expected tuple[str, ...], got 'decoder'"),
    ("batch.exmples", 3, "run.json: batch: Batch has no field 'exmples'; did you mean 'examples'?"),
    ("batch.kind", "Keep", "run.json: batch: Keep is not of type Batch"),
    ("objective.labels.2", 7, "run.json: objective.labels.2: expected str, got 7"),
    ("objective.kind", "Clasify", "run.json: objective: unknown kind 'Clasify'; did you mean 'Classify'?"),
    ("optimizer.kind", None, "run.json: optimizer: missing 'kind'; valid: Adafactor, AdamW, Muon"),
    ("optimizer.kind", "Cosine", "run.json: optimizer: Cosine is not of type Optimizer; "),
    ("optimizer.betas", [0.9], "run.json: optimizer.betas: expected tuple[float, float], got [0.9]"),
    ("lora.targets.0", None, "run.json: lora.targets.0: expected str, got None"),
    ("data.train.path", None, "run.json: data.train: "),
    ("model.width", "wide", "run.json: model.width: expected int, got 'wide'"),
    ("model.decoder.norm.eps", "small", "run.json: model.decoder.norm.eps: expected float, got 'small'"),
    ("model.decoder.layers.attention.op.kind", "RMSNorm", "layers.attention.op: RMSNorm is not of type Op; valid: "),
    ("model.decoder.layers.attention.pre_nrm", {"kind": "RMSNorm"}, "did you mean 'pre_norm'?"),
    ("set", ["steps"], "changes must be {path: value}"),
]  # fmt: skip


def put(content: Any, path: str, value: Any) -> None:
    *steps, last = [int(step) if step.isdecimal() else step for step in path.split(".")]
    for step in steps:
        content = content[step]
    if isinstance(last, str) and value is None:
        del content[last]
    else:
        content[last] = value


@pytest.mark.parametrize(("path", "value", "line"), WRONG, ids=[f"{path}={value}" for path, value, _ in WRONG])
def test_what_is_wrong_is_wrong_for_both(
    path: str, value: Any, line: str, judge: Any, good: Run, tmp_path: Path
) -> None:
    content = json.loads(to_json(good.replace(optimizer=Muon(betas=(0.9, 0.9)), lora=LoRA(targets=("*.q", "*.k")))))
    assert judge.is_valid(content)
    content = copy.deepcopy(content)
    put(content, path, value)
    assert not judge.is_valid(content)
    (tmp_path / "run.json").write_text(json.dumps(content))
    with pytest.raises(ValueError) as caught:
        read_run(tmp_path / "run.json")
    assert line in str(caught.value) and "\n" not in str(caught.value)


# the schema has the range of a field; only reading checks fields together, and `set`
@pytest.mark.parametrize(("path", "value", "line"), [
    ("steps", 0, "run.json: steps is 0; it must be at least 1"),
    ("optimizer.lr", -1, "run.json: optimizer.lr is -1.0; it must be above 0"),
    ("batch.tokens", 7, "run.json: batch: give either examples or tokens"),
    ("model.decoder.norm.eps", -1, "run.json: model.decoder.norm.eps is -1.0; it must be at least 0"),
    ("set", {"optimizer.lr": -1}, "run.json: optimizer.lr is -1.0; it must be above 0"),
    ("set", {"model.decoder.layers.feedforward.op": {"kind": "LayerNorm"}},
     "run.json: model.decoder.layers.feedforward.op: LayerNorm is not of type Op; "),
])  # fmt: skip
def test_a_value_out_of_its_range(path: str, value: Any, line: str, judge: Any, good: Run, tmp_path: Path) -> None:
    content = json.loads(to_json(good))
    put(content, path, value)
    assert judge.is_valid(content) == (path not in ("steps", "optimizer.lr", "model.decoder.norm.eps"))
    (tmp_path / "run.json").write_text(json.dumps(content))
    with pytest.raises(ValueError) as caught:
        read_run(tmp_path / "run.json")
    assert line in str(caught.value)


def test_the_verb_prints_it(
    judge: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyformer.train.run_schema.schema", lambda: judge.schema)  # it takes a second
    assert cli.main(["schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert cli.main(["schema", "--out", str(tmp_path / "run.schema.json")]) == 0 and capsys.readouterr().out == ""
    assert json.loads((tmp_path / "run.schema.json").read_text()) == printed == json.loads(json.dumps(judge.schema))
    adam = printed["$defs"]["AdamW"]
    assert adam["properties"]["weight_decay"]["default"] == 0.1 and "Loshchilov and Hutter" in adam["description"]
    batch = printed["$defs"]["Batch"]["properties"]["length"]
    assert batch["description"].startswith("tokens of a packed row") and batch["default"] is None
