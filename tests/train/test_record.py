"""Captured steps give the same result as ordinary steps, or are not captured."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from anyformer.objectives.causal import NextToken
from anyformer.objectives.contrast import Contrast
from anyformer.objectives.images import ClassifyImage
from anyformer.train import record
from anyformer.train.progress import Metrics, read_metrics
from anyformer.train.record import WARMUP_PASSES, CapturedPass, Measures, Recorder
from anyformer.train.run import Batch
from anyformer.train.start import setup
from anyformer.train.trainer import Callback

sys.path.insert(0, str(Path(__file__).parent))
from runs import model, run_of, write_texts

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
CUDA = torch.device("cuda")


@pytest.mark.parametrize(("given", "message"), [
    ((NextToken(), torch.device("cpu"), "bf16", 1), "need a GPU"), ((NextToken(), CUDA, "bf16", 2), "processes"),
    ((NextToken(), CUDA, "fp16", 1), "use bf16"), ((NextToken(), CUDA, "bf16", 1, 4), "micro"),
    ((Contrast(), CUDA, "bf16", 1), "from step to step"),
])  # fmt: skip
def test_what_cannot_be_recorded_is_refused(given: Any, message: str) -> None:
    assert message in (record.refusal(*given) or "")
    assert record.refusal(NextToken(), CUDA, "bf16", 1) is None


@pytest.mark.parametrize(("host", "device", "needed", "room", "helps", "reason"), [
    (12.0, 12.4, 4, 20, True, "captured in CUDA graphs: launching a step takes 12.0 ms, the device 12.4 ms"),
    (5.0, 12.4, 4, 20, False, "one kernel at a time: launching a step takes 5.0 ms, the device 12.4 ms"),
    (12.0, 12.4, 11, 20, False, "not captured, although .*: that takes 22.0 GB and 20.0 GB are free"),
])  # fmt: skip
def test_steps_are_recorded_where_the_device_waits(
    host: float, device: float, needed: int, room: int, helps: bool, reason: str
) -> None:
    usual = Measures(host / 1000, device / 1000, needed * 10**9, room * 10**9)
    slow = usual._replace(host=1.0, device=9.0)  # one step that waited for data
    found, why = record.decide([slow, usual, usual])
    assert found is helps and re.search(reason, why)


class FakeDevice:
    """A fake device: launching a step takes `host` seconds, computing it `device` seconds."""

    def __init__(self, host: float, device: float) -> None:
        self.host, self.device, self.now = host, device, 0.0

    def launch(self, value: int) -> int:
        self.now += self.host
        return value

    def put_into(self, monkeypatch: pytest.MonkeyPatch) -> None:
        event = SimpleNamespace(record=lambda: None, synchronize=lambda: None)
        event.elapsed_time = lambda end: 1000 * max(self.host, self.device)
        values = {"synchronize": None, "memory_allocated": 5, "memory_reserved": 8}
        values |= {"max_memory_allocated": 7, "mem_get_info": (10, 80)}
        for name, value in values.items():
            monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
        monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event)
        monkeypatch.setattr(record.time, "perf_counter", lambda: self.now)


@pytest.mark.parametrize(("host", "device", "helps"), [(0.3, 0.1, True), (0.1, 0.3, False)])
def test_launches_are_timed_once_kernels_are_there(
    host: float, device: float, helps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, clock = FakeDevice(host, device), record.LaunchClock()
    fake.put_into(monkeypatch)
    assert [clock(fake.launch, n) for n in range(record.UNTIMED_STEPS)] == [
        *range(record.UNTIMED_STEPS)
    ] and not clock.steps
    assert clock(fake.launch, 7) == 7
    (step,) = clock.steps
    assert step == pytest.approx((host, max(host, device), 2, 13)) and record.decide(clock.steps)[0] is helps


def test_on_a_cpu_it_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="record=true: CUDA graphs need a GPU; the device is cpu"):
        setup(run_of(write_texts(tmp_path), record=True), tmp_path / "run", device="cpu")


class Again:
    """A fake CUDA graph: repeats the pass with the decisions that Python made at capture."""

    def __init__(self, decided: float, module: nn.Linear, batch: Any, terms: Any) -> None:
        self.decided, self.module, self.batch, self.terms = decided, module, batch, terms

    def replay(self) -> None:
        loss = (self.module(self.batch["x"]) * self.decided).sum()
        (gradient,) = torch.autograd.grad(loss, self.module.weight)
        self.terms["loss"].copy_(loss.detach())
        self.terms["gradient"].copy_(gradient)


def recorder(decide: Any) -> tuple[Recorder, nn.Linear, list[str]]:
    """A Recorder, on the CPU, of a pass that depends on a decision in Python."""
    module, reports = nn.Linear(3, 1, bias=False), list[str]()

    def do(batch: Any, divisors: Any) -> Any:
        loss = (module(batch["x"]) * decide()).sum()
        loss.backward()
        return {"loss": loss.detach()}

    class Fake(Recorder):
        def capture_pass(self, batch: Any, divisors: Any) -> CapturedPass:
            batch = {"x": batch["x"].clone()}
            terms = {"loss": torch.zeros(()), "gradient": torch.zeros(1, 3)}
            graph = Again(decide(), module, batch, terms)
            return CapturedPass(graph, batch, {}, {"loss": terms["loss"]}, [terms["gradient"]])

    return Fake(do, module, random.seed, reports.append), module, reports


def test_a_recording_reads_the_batch_it_is_given_and_leaves_its_gradients() -> None:
    recorded, module, reports = recorder(lambda: 2.0)
    for step in range(2 * WARMUP_PASSES):
        x = torch.randn(4, 3)
        module.weight.grad = None
        terms = recorded({"x": x}, {}, step)
        assert float(terms["loss"]) == pytest.approx(float(2 * module(x).sum().detach()), rel=1e-5)
        assert module.weight.grad is not None
        assert torch.allclose(module.weight.grad, 2 * x.sum(0, keepdim=True))
        assert len(recorded.captured) == recorded.used_graph == (step >= WARMUP_PASSES)
    assert not reports
    recorded({"x": torch.randn(5, 3)}, {}, 9)  # a different shape needs its own graph
    assert len(recorded.captured) == 1


def test_what_python_draws_is_found_out() -> None:
    recorded, module, reports = recorder(random.random)
    for step in range(2 * WARMUP_PASSES):
        module.weight.grad = None
        random.seed(step)
        x, wanted = torch.randn(4, 3), random.random()
        random.seed(step)
        terms = recorded({"x": x}, {}, step)
        assert float(terms["loss"]) == pytest.approx(float(wanted * module(x).sum().detach()), rel=1e-5)
    assert len(reports) == 1 and "training continues without" in reports[0] and not recorded.captured


# -- on a GPU ---------------------------------------------------------------------------------------------------------


class Heard(Callback):
    def __init__(self) -> None:
        self.lines = list[str]()

    def on_message(self, line: str) -> None:
        self.lines.append(line)


def losses(texts: Path, folder: Path, **changes: Any) -> SimpleNamespace:
    heard = Heard()
    run = run_of(texts, batch=Batch(examples=6, length=32), **{"precision": "bf16", **changes})
    trainer = setup(run, folder, device="cuda", callbacks=[Metrics(), heard]).fit()
    return SimpleNamespace(each=[line["loss"] for line in read_metrics(folder) if "loss" in line], lines=heard.lines,
                           recorder=trainer.recorder)  # fmt: skip


@GPU
@pytest.mark.gpu
def test_recorded_steps_learn_the_same_dropout_included(tmp_path: Path) -> None:
    texts = write_texts(tmp_path, lines=200)
    plain = losses(texts, tmp_path / "plain")
    recorded = losses(texts, tmp_path / "recorded", record=True)
    assert recorded.recorder.captured and not recorded.lines
    assert recorded.each == pytest.approx(plain.each, rel=2e-3)


@GPU
@pytest.mark.gpu
def test_what_asks_the_device_goes_on_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = write_texts(tmp_path, lines=200)
    plain = losses(texts, tmp_path / "plain")
    ask = NextToken.losses

    def asking(self: Any, trained: Any, batch: Any) -> Any:
        terms = ask(self, trained, batch)
        assert float(next(iter(terms.values()))) > 0
        return terms

    monkeypatch.setattr(NextToken, "losses", asking)
    recorded = losses(texts, tmp_path / "asking", record=True)
    assert not recorded.recorder.captured and len(recorded.lines) == 1
    assert recorded.each == pytest.approx(plain.each, rel=2e-3)


@GPU
@pytest.mark.gpu
@pytest.mark.parametrize(
    "changes", [{"record": True}, {"compile": True, "record": False}, {"compile": True, "record": True}], ids=str
)
def test_a_hundred_steps_agree(changes: dict[str, Any], tmp_path: Path) -> None:
    """In fp32 and without dropout, because compiled code draws different masks."""
    texts = write_texts(tmp_path, lines=200)
    same = {"steps": 100, "precision": "fp32", "model": model(resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0)}
    plain = losses(texts, tmp_path / "plain", record=False, **same)
    other = losses(texts, tmp_path / "other", **same, **changes)
    assert len(plain.each) == 100 and plain.each[-1] < plain.each[0] - 0.5
    assert other.each == pytest.approx(plain.each, rel=1e-3)


@GPU
@pytest.mark.gpu
def test_boxes_in_pictures_can_be_captured() -> None:
    """No copy from the host during a step: it would end the capture."""
    pasting = ClassifyImage(labels=("a", "b"), image_size=(8, 6), mean=(0.3,), std=(0.4,), cut=0.5, erase=0.5)
    batch = {"pixel_values": torch.rand(4, 1, 8, 6), "labels": torch.tensor([0, 1, 1, 0]), "chance": torch.rand(4, 8)}
    batch, right = {name: tensor.cuda() for name, tensor in batch.items()}, pasting.paste_boxes(batch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = pasting.paste_boxes(batch)
    graph.replay()
    assert torch.equal(found["pixel_values"].cpu(), right["pixel_values"])
