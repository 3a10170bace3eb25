"""P7: a Part defined outside the package works like the built-in ones. The mixer of docs/extending.md is tested in
Python, with --import and as an installed entry point."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import anyformer as af
from anyformer import families
from anyformer.specs.codec import kinds, to_json
from anyformer.specs.part import Part

REPO = Path(__file__).resolve().parents[1]
EXAMPLE = REPO / "examples" / "moving_average.py"
sys.path.append(str(EXAMPLE.parent))
import moving_average

from small import close, context, made

sys.path.append(str(REPO / "tests" / "train"))
import runs

OP = "decoder.layers.attention.op"
SWAP = {OP: {"kind": "MovingAverage", "width": 20, "longest": 64}}


@pytest.fixture(scope="module")
def spec() -> Any:
    config = {"n_layer": 2, "n_embd": 24, "n_head": 3, "vocab_size": 50, "n_positions": 32}
    return af.override(families.find("gpt2").read({**config, "architectures": ["GPT2LMHeadModel"]}), SWAP)


@pytest.fixture(scope="module")
def model(spec: Any) -> Any:
    built = af.build(spec, seed=0).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return built


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return torch.randint(0, 50, (2, 17), generator=torch.Generator().manual_seed(2))


def test_the_page_shows_the_file() -> None:
    page = (REPO / "docs" / "extending.md").read_text()
    assert f'```python title="moving_average.py"\n{EXAMPLE.read_text()}```' in page


# -- the mixer


def test_it_computes_what_it_says() -> None:
    module = made(moving_average.MovingAverage(width=5), 4)
    x = torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(3))
    a, h, outs = torch.exp(-torch.exp(module.pace)), torch.zeros(2, 5), []
    for t in range(9):
        h = a * h + (1 - a) * module.v(x[:, t])
        outs.append(module.o(F.silu(module.gate(x[:, t])) * h))
    close(module(x, context(9)), torch.stack(outs, dim=1))


def test_it_keeps_what_ours_keep() -> None:
    """N1, N3, N4, N7, N8, G1, L5."""
    report = af.check(moving_average.MovingAverage(width=20, longest=64))
    assert [check.result for check in report.checks] == ["passed"] * len(report.checks), str(report)


def test_n4_pads_between_tokens_change_nothing(model: Any, ids: torch.Tensor) -> None:
    at = 8
    pads = torch.full((2, 5), 7)
    real = torch.ones(2, 22, dtype=torch.bool)
    real[:, at : at + 5] = False
    row = torch.cat((ids[:, :at], pads, ids[:, at:]), dim=1)
    places = torch.where(real, real.cumsum(-1) - 1, 0)
    with torch.no_grad():
        padded = model(input_ids=row, attention_mask=real, position_ids=places).logits[real].view(2, 17, 50)
        close(padded, model(input_ids=ids).logits, 1e-5)


@pytest.mark.parametrize("where", ["left", "right"])
def test_n4_a_padded_prompt_leaves_behind_what_the_prompt_does(model: Any, ids: torch.Tensor, where: str) -> None:
    plain, padded = model.new_state(), model.new_state()
    pads, real = torch.full((2, 5), 7), torch.ones(2, 6, dtype=torch.long)
    order = slice(None, None, -1 if where == "right" else 1)
    row = torch.cat((pads, ids[:, :6])[order], dim=1)
    mask = torch.cat((torch.zeros_like(pads), real)[order], dim=1)
    with torch.no_grad():
        model(input_ids=ids[:, :6], past_key_values=plain)
        model(input_ids=row, attention_mask=mask, past_key_values=padded)
    for address, slot in plain.stores.items():
        close(padded.stores[address].tensors["average"], slot.tensors["average"], 1e-5)


def test_it_writes_the_same_with_and_without_a_memory(model: Any, ids: torch.Tensor) -> None:
    """With prompts of different lengths, and with beams, which reorder the rows of the state."""
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[0, :3] = 0
    for more in ({}, {"num_beams": 3}):
        texts = [
            af.generate(model, ids[:, :6], attention_mask=mask, max_new_tokens=8, use_cache=use, **more)
            for use in (True, False)
        ]
        assert torch.equal(*texts)
    alone = af.generate(model, ids[:1, 3:6], max_new_tokens=8)
    assert torch.equal(af.generate(model, ids[:, :6], attention_mask=mask, max_new_tokens=8)[0, 3:], alone[0])


def test_n8_every_parameter_learns(spec: Any, ids: torch.Tensor) -> None:
    model = af.build(spec, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(12):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        assert all(p.grad is not None and bool(p.grad.abs().max() > 0) for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]


def test_p2_it_brings_its_own_start(spec: Any) -> None:
    model = af.build(spec, seed=0)
    for layer in model.decoder.layers:
        half = -(torch.tensor(2.0).log()) / -torch.exp(layer.attention.op.pace)  # tokens until half is forgotten
        close(half[[0, -1]], torch.tensor([1.0, 64.0]), 1e-5)


# -- as a value in a description


def test_it_is_listed_counted_saved_and_loaded(spec: Any, model: Any, ids: torch.Tensor, tmp_path: Path) -> None:
    assert kinds()["MovingAverage"] is moving_average.MovingAverage and "SelectiveState" in kinds()
    counted = af.count(spec)
    assert counted.parameters == sum(p.numel() for p in model.parameters())
    assert counted.parts[f"{OP.replace('layers', 'layers.1')}.pace"] == 20
    assert counted.state(3, 1000) == 2 * 3 * 20 * 4  # the same for every length
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(input_ids=ids[:1])
    assert counted.flops(ids.shape[1]) == counter.get_total_flops()
    af.save(model, tmp_path)
    again = af.load(tmp_path)
    assert again.spec.decoder == spec.decoder and json.loads((tmp_path / "spec.json").read_text())
    with torch.no_grad():
        assert torch.equal(again(input_ids=ids).logits, model(input_ids=ids).logits)
    with pytest.raises(ValueError, match="gpt2 config.*format='anyformer'"):
        af.save(model, tmp_path / "hf", format="hf")


def test_its_fields_are_overridden_and_checked(spec: Any) -> None:
    assert af.override(spec, {f"{OP}.width": 8}).decoder.layer(0).steps["attention"].op.width == 8
    one = af.override(spec, {"decoder.layers.1.attention.op": {"kind": "MovingAverage"}})
    assert af.count(one).parts["decoder.layers.1.attention.op.pace"] == 24
    with pytest.raises(ValueError, match=f"{OP}.width.* 0.* at least 1"):
        af.override(spec, {f"{OP}.width": 0})
    with pytest.raises(ValueError, match="MovingAverage.*'with'.*'width'"):
        af.override(spec, {f"{OP}.with": 3})


def test_lora_finds_its_layers(spec: Any, ids: torch.Tensor) -> None:
    from anyformer.transforms.lora import LoRA, apply

    model = af.build(spec, seed=0)
    apply(model, LoRA(rank=2, targets=("*.op.v", "*.op.gate")), seed=0)
    model(input_ids=ids, labels=ids).loss.backward()
    learnt = {name for name, p in model.named_parameters() if p.grad is not None}
    assert learnt and all("lora_" in name for name in learnt) and any("attention.op.gate" in name for name in learnt)


def test_two_kinds_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="MLP.*anyformer.parts.feedforward.mlp.*test_elsewhere"):
        type("MLP", (Part,), {"__module__": "test_elsewhere"})
    assert kinds()["MLP"].__module__ == "anyformer.parts.feedforward.mlp"


# -- in separate processes


def python(arguments: list[str], folder: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, (REPO / "src", *paths)))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)


def install(site: Path, package: str, module: str, code: str, value: str | None = None) -> None:
    """Write the files of an installed package with an entry point."""
    information = site / f"{package}-1.0.dist-info"
    information.mkdir(parents=True)
    (site / f"{module}.py").write_text(code)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[anyformer.parts]\n{module} = {value or module}\n")


CLASH = "from anyformer.specs.part import Part\nclass Half(Part): pass\nclass MLP(Part): pass\n"
INSTALLED = """
import json, sys, warnings
import anyformer as af
from anyformer.specs.codec import kinds
assert "moving_average" not in sys.modules
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model = af.load("model")
    af.load("model")
text = af.generate(model, model.new_state and __import__("torch").tensor([[1, 2, 3]]), max_new_tokens=4)
messages = [str(w.message) for w in caught if "anyformer.parts" in str(w.message)]
print(json.dumps([messages, text.shape[1], af.count(model.spec).parameters, "MovingAverage" in kinds(),
                  "Half" in kinds(), kinds()["MLP"].__module__]))
"""


def test_an_installed_package_brings_its_parts_and_a_broken_one_is_a_line(model: Any, tmp_path: Path) -> None:
    af.save(model, tmp_path / "model")
    site = tmp_path / "site"
    install(site, "fading", "moving_average", EXAMPLE.read_text(), "moving_average:MovingAverage")
    install(site, "broken", "broken_parts", "import nothing_of_this_name")
    install(site, "clash", "clashing_parts", CLASH)
    install(site, "leaver", "leaving_parts", "import sys\nsys.exit('never')")
    done = python(["-c", INSTALLED], tmp_path, site)
    assert done.returncode == 0, done.stderr
    messages, length, size, listed, half, mlp = json.loads(done.stdout)
    assert length == 7 and size == sum(p.numel() for p in model.parameters()) and listed
    assert not half and mlp == "anyformer.parts.feedforward.mlp"  # a package that fails registers no Part
    assert len(messages) == 3 and all("\n" not in line for line in messages)
    for line, facts in zip(sorted(messages), (
        "^anyformer.parts: broken_parts .*broken .*ModuleNotFoundError.*'nothing_of_this_name'",
        "^anyformer.parts: clashing_parts .*clash .*ValueError.* MLP.*anyformer.parts.feedforward.mlp.*clashing_parts",
        "^anyformer.parts: leaving_parts .*leaver .*SystemExit.*never",
    ), strict=True):  # fmt: skip
        assert re.search(facts, line), line


@pytest.fixture(scope="module")
def place(spec: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with the module, and with a description and a run that use its mixer."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copy(EXAMPLE, folder)
    (folder / "spec.json").write_text(to_json(spec))
    run = runs.run_of(runs.write_texts(folder / "texts"), steps=1, model=af.override(runs.model(), SWAP))
    (folder / "run.json").write_text(to_json(run))
    return folder


COMMANDS = """
import sys, io, json, contextlib
del sys.path[0]  # as in an installed command, the working folder is not in sys.path
from anyformer import cli
results = []
for arguments in json.load(open("commands.json")):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(arguments)
    results.append([code, out.getvalue(), err.getvalue(), "moving_average" in sys.modules])
json.dump(results, open("results.json", "w"))
"""


def test_from_the_command_line(spec: Any, tmp_path: Path) -> None:
    """Commands refuse the Part until --import names its module: a file never causes an import, even if the module is in
    the same folder. With --import, the model is counted, trained and used."""
    shutil.copy(EXAMPLE, tmp_path)
    (tmp_path / "wrong.py").write_text("raise KeyError('two\\nlines')")
    (tmp_path / "spec.json").write_text(to_json(spec))
    run = runs.run_of(runs.write_texts(tmp_path / "texts"), steps=1, model=af.override(runs.model(), SWAP))
    (tmp_path / "run.json").write_text(to_json(run))
    commands = [
        ["count", "spec.json"],
        ["train", "run.json"],
        ["count", "spec.json", "--import", "moving_averag"],
        ["count", "spec.json", "--import", "wrong"],
        ["count", "spec.json", "--json", "--import=moving_average"],
        ["train", "run.json", "--import", "moving_average", "--out", "run", "--device", "cpu"],
        ["generate", "run", "ab", "--max-new-tokens", "3", "--import", "moving_average"],
    ]
    (tmp_path / "commands.json").write_text(json.dumps(commands))
    done = python(["-c", COMMANDS], tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    for code, _, err, imported in results[:4]:
        assert code == 2 and not imported and err.count("\n") == 1
    for (_, _, err, _), facts in zip(results, (
        "spec.json: decoder.layers.attention.op: .*'MovingAverage'.*--import MODULE",
        "run.json: model.decoder.layers.attention.op: .*'MovingAverage'.*--import MODULE",
        "--import moving_averag .*No module named 'moving_averag'",
        "--import wrong .*KeyError",
    )):  # fmt: skip
        assert re.search(facts, err), err
    assert [code for code, *_ in results[4:]] == [0, 0, 0], results[4:]
    table = json.loads(results[4][1])["parts"]
    assert table["decoder.layers.attention"] == 2 * (3 * 20 * 24 + 20 + 2 * 24)  # including the pre-norm
    assert results[6][1].strip()


def test_every_verb_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    from anyformer import cli

    for verb in cli.VERBS:
        assert cli.main([verb, *(["fill-mask"] if verb == "run" else []), "--help"]) == 0
        assert "--import MODULE" in capsys.readouterr().out, verb
