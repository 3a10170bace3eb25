"""Reports of a run: baselines by hand, metrics after a kill, the curve, and a page that loads nothing."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from anyformer.data.shards import DataSplit, Writer
from anyformer.train import progress
from anyformer.train.baseline import WEIGHTS, baselines
from anyformer.train.progress import Metrics, Samples, Screen, Speed, peak, read_metrics
from anyformer.train.report import outcome, report, smooth
from anyformer.train.start import progress_line
from anyformer.train.trainer import StepResult


def split(folder: Path, texts: list[list[int]]) -> DataSplit:
    with Writer(folder) as writer:
        for text in texts:
            writer.add({"input_ids": np.array(text, np.int32)})
    return DataSplit(folder)


def test_baselines_by_hand(tmp_path: Path) -> None:
    """Training texts 0 1 1 | 2 1, validation texts 0 1 | 2 2: pairs do not cross the end of a text."""
    train, valid = split(tmp_path / "a", [[0, 1, 1], [2, 1]]), split(tmp_path / "b", [[0, 1], [2, 2]])
    single = {w: [(n + w / 3) / (3 + w) for n in (0, 3, 0)] for w in WEIGHTS}  # what follows: 1, 1, 1
    unigram, best = min((-(math.log(p[1]) + math.log(p[2])) / 2, w) for w, p in single.items())
    p = single[best]
    # 0 is followed by 1 in 1 of 1 cases, 2 by 2 in 0 of 1
    bigram = min(-(math.log((1 + w * p[1]) / (1 + w)) + math.log(w * p[2] / (1 + w))) / 2 for w in WEIGHTS)
    assert baselines(train, valid, 3) == {"unigram": pytest.approx(unigram), "bigram": pytest.approx(bigram)}
    assert baselines(train, split(tmp_path / "c", [[1]]), 3) == {}


def test_lines_after_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    """A resumed run also drops the incomplete line of a killed run."""
    lines = [{"step": n, "loss": float(n)} for n in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 4, "lo')
    assert read_metrics(tmp_path) == lines
    trainer: Any = SimpleNamespace(folder=tmp_path, step=2, examples=0, tokens=0, seconds=0.0)
    metrics = Metrics()
    metrics.on_start(trainer)
    metrics.on_step(trainer, StepResult(3, 0.1 + 0.2, {"a": 0.1, "b": 0.2}, 1.0, 1e-3, 1, 1, 0.1))
    metrics.on_stop(trainer)
    found = read_metrics(tmp_path)
    assert [line["step"] for line in found] == [1, 2, 3] and found[-1]["loss"] == 0.1 + 0.2
    assert (found[-1]["loss/a"], found[-1]["loss/b"]) == (0.1, 0.2)


def test_a_page_and_a_picture(tmp_path: Path) -> None:
    """A model's text is escaped in the page."""
    (tmp_path / "run.json").write_text('{"name": "<b>small</b>"}')
    (tmp_path / "environment.json").write_text('{"seed": 3}')
    lines = [{"step": n, "loss": 5 / n, "tokens": n, "seconds": 0.1 * n} for n in range(1, 9)]
    lines += [{"step": 8, "valid/loss": 0.7}, {"step": 8, "text": "<script>alert(1)</script>"}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    written = report(tmp_path, {"bigram": 1.25})
    page = (tmp_path / "report.html").read_text()
    assert "<script>" not in page and "&lt;script&gt;alert(1)" in page and "<b>small" not in page
    assert "default-src 'none'" in page and "bigram baseline</td><td>1.2500" in page and "0.7000" in page
    assert 'name="viewport"' in page, "readable on a phone"
    pytest.importorskip("matplotlib")
    assert [path.name for path in written] == ["curve.png", "report.html"]
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_outcome_is_that_of_the_best_step(tmp_path: Path) -> None:
    """The log and the page compare the loss of the model that the folder opens with the baselines."""
    (tmp_path / "run.json").write_text('{"name": "small"}')
    (tmp_path / "environment.json").write_text("{}")
    lines = [{"step": step, "valid/loss": loss} for step, loss in ((1, 4.0), (2, 3.7), (3, 4.8))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for step in (2, 3):
        folder = tmp_path / "checkpoints" / f"step-{step:08}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps({"score": lines[step - 1]["valid/loss"]}))
    better, worse = {"unigram": 5.1, "bigram": 3.8}, {"unigram": 5.1, "bigram": 3.6}
    assert outcome(tmp_path, better) == [
        "best validation: step 2, loss 3.700, which beats the baselines (unigram 5.100, bigram 3.800)",
        f"{tmp_path} is the model of step 2; {tmp_path}@last is the model of step 3",
    ]
    assert outcome(tmp_path, worse)[0].endswith("loss 3.700, which does not beat the baseline bigram 3.600")
    report(tmp_path, worse)
    page = (tmp_path / "report.html").read_text()
    for name, value in (
        ("model of step", "2, the best by loss"), ("validation loss", "3.7000"), ("last validation loss", "4.8000"),
        ("result", "the model does not beat the baseline bigram 3.600"),
    ):  # fmt: skip
        assert f"<td>{name}</td><td>{value}</td>" in page
    shutil.rmtree(tmp_path / "checkpoints")  # without checkpoints: the last evaluation
    assert outcome(tmp_path, better) == [
        "validation loss 4.800 after step 3, which does not beat the baseline bigram 3.800"
    ]


def test_the_outcome_names_the_score_that_chose_the_step(tmp_path: Path) -> None:
    """With evaluate.best=accuracy the best model need not have the lowest loss."""
    (tmp_path / "run.json").write_text('{"name": "small", "evaluate": {"best": "accuracy"}}')
    (tmp_path / "environment.json").write_text("{}")
    scores = ((1, 0.4, 0.75), (2, 0.6, 0.875))
    lines = [{"step": step, "valid/loss": loss, "valid/accuracy": right} for step, loss, right in scores]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for step, _, right in scores:
        folder = tmp_path / "checkpoints" / f"step-{step:08}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps({"score": -right}))
    baselines = {"label frequencies": 0.7}
    assert outcome(tmp_path, baselines) == [
        "best validation: step 2, accuracy 0.875, loss 0.600, which beats the baselines (label frequencies 0.700)"
    ]
    report(tmp_path, baselines)
    page = (tmp_path / "report.html").read_text()
    for name, value in (("model of step", "2, the best by accuracy"), ("validation loss", "0.6000")):
        assert f"<td>{name}</td><td>{value}</td>" in page
    (tmp_path / "run.json").write_text('{"name": "small"}')  # the loss, unless the run names another score
    assert outcome(tmp_path, {}) == ["best validation: step 2, loss 0.600"]


def test_smoothing_begins_and_ends_at_the_data_and_is_not_late() -> None:
    assert smooth([]) == [] and smooth([(1, 4.0)]) == [(1, 4.0)]
    line = [(n, float(n)) for n in range(100)]
    assert all(value == pytest.approx(step) for step, value in smooth(line)) and len(smooth(line)) == 100
    noisy = [(n, 2.0 + (-1) ** n) for n in range(200)]
    found = smooth(noisy)
    assert found[0] == pytest.approx(noisy[0]) and found[-1] == pytest.approx(noisy[-1])
    assert all(abs(value - 2) < 0.15 for _, value in found[5:-5])


def test_a_step_is_never_faster_than_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """If other work slowed down the measured peak, a faster step corrects it."""
    monkeypatch.setattr(progress, "flops_per_token", lambda trainer: 100.0)
    monkeypatch.setattr(progress, "peak", lambda device, precision: 5_000.0)
    trainer = SimpleNamespace(layout=SimpleNamespace(sharded=False), device=None, run=SimpleNamespace(precision="fp32"))
    speed = Speed()
    for step, tokens in enumerate((10, 10, 109, 20), 1):
        speed.add(trainer, StepResult(step, 1.0, {}, 1.0, 0.1, 1, tokens, 1.0))  # type: ignore[arg-type]
        assert speed.share is None or 0 < speed.share <= 1
    assert speed.share < 1 and str(speed).endswith(" % of peak")


def test_nothing_moves_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    screen.on_message("a line")
    out, err = capsys.readouterr()
    assert (out, err) == ("a line\n", "")
    assert 1e8 < peak(torch.device("cpu"), "fp32") < 1e14


def test_lines_of_progress_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal: a line per interval for steps and for data preparation, and no progress bar."""
    seconds = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    screen = Screen(every=30.0)
    screen.speed.flops = 0.0
    trainer = SimpleNamespace(steps=1000)
    for step in range(1, 9):
        seconds[0] += 10.0
        screen.on_step(trainer, StepResult(step, 2.0 - step / 10, {}, 1.0, 0.1, 1, 100, 10.0))  # type: ignore[arg-type]
    out, err = capsys.readouterr()
    assert err == "" and out.splitlines() == [
        "step 4 of 1,000: loss 1.600, 10 tokens/s", "step 8 of 1,000: loss 1.200, 10 tokens/s"
    ]  # fmt: skip
    reports: list[str] = []
    with progress_line(reports.append, "preparing the data", every=30.0) as tick:
        for count in range(0, 2048, 256):
            seconds[0] += 10.0
            tick("train", count)
    assert reports == ["preparing the data: train, 768 examples", "preparing the data: train, 1,792 examples"]


def test_a_bar_moves_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A progress bar from the first step to the last; lines are printed above it."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run = SimpleNamespace(name="small", precision="fp32")
    where = {"step": 4, "steps": 9, "epochs": lambda step: {}, "reason": "enough"}
    trainer: Any = SimpleNamespace(run=run, module=torch.nn.Linear(2, 3), **where)
    screen = Screen()
    screen.speed.flops = 0.0
    screen.on_start(trainer)
    assert screen.bar.live.is_started and screen.bar.tasks[0].completed == 4
    screen.on_step(trainer, StepResult(5, 1.25, {}, 1.0, 0.1, 1, 1, 0.1))
    assert (screen.bar.tasks[0].completed, screen.bar.tasks[0].fields["loss"]) == (5, "loss 1.250")
    live = screen.bar.live
    screen.on_message("a line")
    screen.on_stop(trainer)
    assert not live.is_started and screen.bar is None
    out, err = capsys.readouterr()
    assert out == "small: 9 parameters, 9 steps, from step 4\nstopped after step 4: enough\n" and "a line" in err


@pytest.mark.parametrize(("prompt", "tokenizer"), [(None, "one"), ("Once", None)])
def test_nothing_is_written_without_a_prompt_or_a_vocabulary(prompt: str | None, tokenizer: str | None) -> None:
    asked, reports = SimpleNamespace(evaluate=SimpleNamespace(sample=prompt)), list[Any]()
    trainer: Any = SimpleNamespace(run=asked, tokenizer=tokenizer, notify=reports.append)  # without a model
    Samples().on_evaluate(trainer, {})
    assert reports == []


def test_speed_is_right_where_two_steps_are_read_at_once() -> None:
    speed = Speed()
    speed.flops = 0.0
    for step in range(200):
        done = StepResult(step, 1.0, {}, 1.0, 1.0, 1, 100, 0.2 if step % 2 else 0.0)
        speed.add(None, done)  # type: ignore[arg-type]
    assert 900 < speed.rate < 1150  # 200 tokens in 0.2 s
