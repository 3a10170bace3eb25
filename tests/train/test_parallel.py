"""Several processes give the same result as one: copies, FSDP2, tensor parallelism, combinations; T2 and T4."""

from __future__ import annotations

import functools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import anyformer as af
from anyformer import families
from anyformer.cli import main
from anyformer.specs.codec import override, to_json
from anyformer.train import shard
from anyformer.train.parallel import Layout, Mesh
from anyformer.train.progress import read_metrics
from anyformer.train.resume import read
from anyformer.train.run import Batch, Evaluate, Keep
from anyformer.train.start import setup
from anyformer.weights import manifest

sys.path.insert(0, str(Path(__file__).parent))
import processes

pytestmark = pytest.mark.xdist_group("nursery")  # one worker starts one process for all of them

FAMILIES = tuple(processes.CONFIGS)
COPIES, SHARD, TENSOR, EXPERT = {}, {"shard": 2}, {"tensor": 2}, {"expert": 2}  # type: ignore[var-annotated]
BOTH, HYBRID, WIDE = {"shard": 2, "tensor": 2}, {"replicate": 2, "shard": 2}, {"replicate": 2, "tensor": 2}
EVERYDAY = {
    2: [*([f"{name}-shard", name, SHARD] for name in ("llama", "mixtral")), ["t5-tensor", "t5", TENSOR],
        ["llama-to-pieces", "llama", COPIES, TENSOR],
        ["mixtral-spread", "mixtral", SHARD, EXPERT], ["routed", "routed", EXPERT],
        ["troubles", "troubles", TENSOR]],
    4: [["llama-both", "llama", BOTH]],
}  # fmt: skip
SLOW = {
    2: [[f"{name}-every-{kind}", name, mesh] for name in FAMILIES
        for kind, mesh in (("copies", COPIES), ("tensor", TENSOR))]
       + [["bert-shard", "bert", SHARD], ["t5-shard", "t5", SHARD], ["llama-from-pieces", "llama", SHARD, COPIES]],
    4: [*([f"{name}-{kind}-of-4", name, mesh] for name in FAMILIES
          for kind, mesh in (("copies", COPIES), ("shard", {"shard": 4}), ("both", BOTH), ("hybrid", HYBRID),
                             ("wide", WIDE))),
        *([f"mixtral-spread-{i}", "mixtral", mesh]
          for i, mesh in enumerate(({"expert": 4}, {"shard": 2, "expert": 2}, {"replicate": 2, "expert": 2}))),
        ["llama-about", "llama", BOTH, HYBRID], ["mixtral-about", "mixtral", WIDE, COPIES],
        ["t5-about", "t5", COPIES, BOTH], ["bert-about", "bert", HYBRID, WIDE]],
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data."""
    folder = tmp_path_factory.mktemp("parallel")
    processes.write_data(folder)
    torch.set_num_threads(1)
    return folder


@functools.cache
def trained_alone(place: Path, name: str) -> dict[str, Any]:
    """The result of one process, with the weights before the first step."""
    run = processes.run_of(name, place, Mesh())
    return {**processes.trained(run, place / name), "start": af.build(run.model, seed=0).state_dict()}


def trained_by(nursery: processes.runs.Nursery, place: Path, num: int, cases: list[Any]) -> dict[str, Any]:
    (place / "cases.json").write_text(json.dumps(cases))
    nursery.start("parallel", place, num)
    assert nursery.wait() == 0
    return torch.load(place / f"found-{num}.pt")


def compare(found: dict[str, Any], alone: dict[str, Any], case: str) -> None:
    """Compare losses, gradient norms, evaluations, weights, and the examples of each step."""
    num = len(found["values"])
    assert num and alone["values"][-num:] == pytest.approx(found["values"], abs=1e-5), case
    assert alone["rows"][-len(found["rows"]) :] == found["rows"], case
    for name, tensor in alone["weights"].items():
        assert float((tensor - found["weights"][name]).abs().max()) < 1e-5, f"{case}: {name}"


def check_all(place: Path, found: dict[str, Any]) -> None:
    found = {case: results for case, results in found.items() if case.split("-")[0] in FAMILIES}
    assert found
    for case, results in found.items():
        alone = trained_alone(place, case.split("-")[0])
        compare(results, alone, case)
        for n, tensor in results["weights"].items():  # all have learnt something; of a bias of keys all sums are 0
            assert n.endswith(".k.bias") or float((tensor - alone["start"][n]).abs().max()) > 1e-5, f"{case}: {n}"


@pytest.fixture(scope="module")
def by_two(place: Path, nursery: Any) -> dict[str, Any]:
    return trained_by(nursery, place, 2, EVERYDAY[2])


def test_two_are_one(place: Path, by_two: dict[str, Any]) -> None:
    check_all(place, by_two)


def test_experts_are_spread_over_processes(by_two: dict[str, Any]) -> None:
    """Each process has two of the four experts, not a piece of all, also of tokens that are dropped or of none."""
    assert by_two["mixtral-spread"]["experts"] == [(2, 2), (2, 2)]
    assert by_two["mixtral-shard"]["experts"] == [(4, 2), (4, 2)]
    for differences in by_two["routed"]["differences"]:
        assert len(differences) == 7 and max(differences.values()) < 1e-5, differences


@pytest.mark.slow
def test_four_are_one(place: Path, nursery: Any) -> None:
    check_all(place, trained_by(nursery, place, 4, EVERYDAY[4]))


@pytest.mark.slow
@pytest.mark.parametrize("num", [2, 4])
def test_many_are_one_in_every_layout(place: Path, nursery: Any, num: int) -> None:
    check_all(place, trained_by(nursery, place, num, SLOW[num]))


# -- checkpoints in pieces (of the runs above)


def test_a_checkpoint_in_pieces_is_a_model(
    place: Path, by_two: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = place / "llama-shard"
    last = list(manifest.steps(folder).values())[-1]
    assert len(list(last.glob("shard-*.safetensors"))) == 2 and not (last / "model.safetensors").exists()
    assert main(["convert", str(folder), str(tmp_path / "plain")]) == 0
    assert (tmp_path / "plain" / "model.safetensors").is_file() and (tmp_path / "plain" / "tokenizer.json").is_file()
    trained_alone(place, "llama")
    one, two = (af.load(f).state_dict() for f in (place / "llama", tmp_path / "plain"))  # the saved average
    assert max(float((tensor - two[name]).abs().max()) for name, tensor in one.items()) < 1e-5
    assert main(["generate", str(folder), "a", "--max-new-tokens", "2"]) == 0 and capsys.readouterr().out


def test_t4_another_number_of_processes_goes_on_with_the_same(
    place: Path, by_two: dict[str, Any], tmp_path: Path
) -> None:
    """Two processes with sharded parameters begin, one process continues."""
    name = "mixtral"
    shutil.copytree(place / f"{name}-shard", tmp_path / "run")
    manifest.remove(manifest.steps(tmp_path / "run")[4])
    rest = processes.trained(processes.run_of(name, place, Mesh()), tmp_path / "run")
    assert [step for step, _ in rest["rows"]] == [2, 3]
    compare(rest, trained_alone(place, name), name)


def test_a_damaged_piece_is_noticed(place: Path, by_two: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(place / "mixtral-shard", tmp_path / "run")
    last = manifest.steps(tmp_path / "run")[4]
    piece = sorted(last.glob("shard-*.safetensors"))[1]
    content = bytearray(piece.read_bytes())
    content[-1] ^= 1
    piece.write_bytes(content)
    folder, faults = manifest.newest(tmp_path / "run")
    assert folder is not None and folder.name == "step-00000002" and "checksum" in faults[0] and piece.name in faults[0]


# -- T2


def start_torchrun(place: Path, out: Path, run: Any, restarts: int) -> subprocess.Popen[str]:
    (place / f"{out.name}.json").write_text(to_json(run))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--monitor-interval", "0.1"]
    job = ["-m", "anyformer", "train", str(place / f"{out.name}.json"), "--out", str(out), "--device", "cpu"]
    command = [sys.executable, *launcher, "--max-restarts", str(restarts), *job]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=place,
    )


def kill_worker(agent: subprocess.Popen[str], out: Path, step: int, which: int) -> None:
    """Kill one of the two processes (kill -9) after this step was logged."""
    limit = time.monotonic() + 120
    while sum("loss" in line for line in read_metrics(out)) < step:
        if agent.poll() is not None:
            raise AssertionError(f"it ended before step {step}: {agent.communicate()[0][-3000:]}")
        assert time.monotonic() < limit, "it does not get there"
        time.sleep(0.02)
    workers = sorted(psutil.Process(agent.pid).children(), key=lambda p: int(p.environ()["RANK"]))
    assert len(workers) == 2
    os.kill(workers[which].pid, signal.SIGKILL)
    workers[which].wait(30)


def elastic(place: Path, out: Path, kills: list[tuple[int, int]], run: Any) -> None:
    whole = out.with_name(f"{out.name}-whole")
    for folder, killed in ((whole, []), (out, kills)):
        if folder.is_dir():
            continue
        agent = start_torchrun(place, folder, run, restarts=len(killed))
        try:
            for step, which in killed:
                kill_worker(agent, folder, step, which)
            output, _ = agent.communicate(timeout=300)
        finally:
            agent.kill()
        assert agent.returncode == 0, output[-3000:]
        assert output.count(", from step ") == len(killed), output  # it continued from a checkpoint each time
    one, two = (read(list(manifest.steps(folder).values())[-1]) for folder in (whole, out))
    assert {**one.values, "seconds": 0} == {**two.values, "seconds": 0} and one.values["step"] == run.steps
    for kind, tensors in one.tensors.items():
        assert tensors.keys() == two.tensors[kind].keys()
        assert all(torch.equal(tensor, two.tensors[kind][name]) for name, tensor in tensors.items()), kind
    history = [[{**line, "seconds": 0} for line in read_metrics(folder)] for folder in (whole, out)]
    assert history[0] == history[1]


def elastic_run(place: Path, mesh: dict[str, int], **changes: Any) -> Any:
    run = processes.run_of("llama", place, Mesh(**mesh), keep=Keep(every=3), evaluate=Evaluate(every=8))
    return override(run, {"steps": 16, "batch": Batch(examples=6, length=32), **changes})


@pytest.mark.slow  # every day: one process killed and resumed (test_resume.py), and going on in other layouts (above)
def test_t2_a_killed_worker_under_torchrun_changes_nothing(place: Path) -> None:
    elastic(place, place / "killed", [(7, 1)], elastic_run(place, SHARD))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("mesh", [COPIES, SHARD, TENSOR], ids=["copies", "shard", "tensor"])
def test_t2_workers_killed_at_random(place: Path, precision: str, mesh: dict[str, int]) -> None:
    draw = random.Random(str((precision, mesh)))
    steps = draw.sample(range(4, 60, 6), 5)  # far apart: some lines may be written before torchrun sees that one died
    kills = [(step, draw.randint(0, 1)) for step in sorted(steps)]
    out = place / f"random-{precision}-{'-'.join(mesh) or 'copies'}"
    elastic(place, out, kills, elastic_run(place, mesh, steps=64, precision=precision))


# -- what cannot be


@pytest.mark.parametrize(("family", "changes", "num", "message"), [
    ("llama", {"num_key_value_heads": 1}, 2, "decoder.layers.0.attention.op: 1 key and value heads cannot be split"),
    ("llama", {}, 3, "decoder.layers.0.attention.op: 4 heads cannot be split over mesh.tensor=3 processes"),
    ("bert", {"intermediate_size": 21}, 2, "encoder.layers.0.feedforward.op.up: 21 features cannot be split"),
    ("mixtral", {"num_local_experts": 3}, 2, "decoder.layers.0.feedforward.op.experts: 3 experts cannot be split"),
])  # fmt: skip
def test_what_cannot_be_split_is_named(family: str, changes: dict[str, Any], num: int, message: str) -> None:
    spec = families.find(family).read({"vocab_size": 50, **processes.CONFIGS[family], **changes})
    with pytest.raises(ValueError, match=re.escape(message)):
        shard.plan(af.build(spec, device="meta"), num)


def test_experts_that_cannot_be_spread() -> None:
    specs = {name: families.find(name).read({"vocab_size": 50, **processes.CONFIGS[name]}) for name in FAMILIES}
    line = "decoder.layers.0.feedforward.op.experts: 4 experts cannot be split over mesh.expert=3 processes"
    with pytest.raises(ValueError, match=re.escape(line)):
        shard.check_experts(af.build(specs["mixtral"], device="meta"), 3)
    with pytest.raises(ValueError, match=r"no experts to split over processes; set mesh.expert=1"):
        shard.check_experts(af.build(specs["llama"], device="meta"), 2)
    with pytest.raises(ValueError, match=r"set mesh.tensor or mesh.expert to 1"):
        Mesh(tensor=2, expert=2)


def test_every_linear_layer_of_a_block_has_its_place() -> None:
    spec = families.find("t5").read({"vocab_size": 50, **processes.CONFIGS["t5"]})
    plan = shard.plan(af.build(spec, device="meta"), 2)
    kinds = {re.sub(r"\d+", "*", address): type(style).__name__[:3] for address, style in plan.items()}
    across = {f"decoder.layers.*.{part}.op.{name}": kind for part in ("attention", "cross")
              for name, kind in zip("qkvo", ("Col", "Col", "Col", "Row"))}  # fmt: skip
    assert across.items() <= kinds.items() and kinds["encoder.layers.*.feedforward.op.down"] == "Row"
    assert len(plan) == 2 * (4 + 2) + 2 * (8 + 2)


def test_troubles_are_those_of_all(by_two: dict[str, Any]) -> None:
    """One process is asked to stop, one gets a NaN weight, a layout is impossible: all processes end with one line."""
    one, two = by_two["troubles"]["messages"]
    steps, checkpoints, why = one.pop("stopped")
    assert two.pop("stopped") == (steps, checkpoints, "interrupted") and why == "another process was asked to stop"
    assert steps == checkpoints[-1] == 3  # the step of the request; after it, all processes know
    assert one == two  # word for word
    where = "the first values that are not finite appear in decoder.layers.1.feedforward.op.up.weight"
    assert one["nan"] == f"step 4: the loss is not finite; {where}; the checkpoint of step 2 is good"
    assert "use bf16" in one["fp16"] and "use AdamW or Muon" in one["adafactor"]
    assert "decoder.layer_drop is 0.1" in one["drop"] and "mesh.shard=1" in one["drop"]
    line = "decoder.layers.0.attention.op.q: only a plain nn.Linear can be split (no adapter)"
    assert one["lora"] == f"{line}; set mesh.tensor=1"
    assert "already has a run: --resume continues it" in one["claimed"]


def test_a_mesh_for_other_processes(place: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"needs 4 processes; torchrun started one process"):
        Layout(Mesh(shard=2, tensor=2), torch.device("cpu"))
    with pytest.raises(ValueError, match="needs 2 processes"):
        setup(processes.run_of("bert", place, Mesh(replicate=2)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
