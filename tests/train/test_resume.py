"""T2: a run that is killed (kill -9) and resumed equals an uninterrupted run, bit for bit. T4: no other run resumes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.data import Bytes, Plan, TextFiles, TrainedBPE
from anyformer.kernels import hardware
from anyformer.specs.codec import override
from anyformer.train.optim import AdamW
from anyformer.train.progress import Metrics, read_metrics
from anyformer.train.resume import read
from anyformer.train.run import Batch, Evaluate, differences, read_run
from anyformer.train.start import setup
from anyformer.weights import hub, manifest

sys.path.insert(0, str(Path(__file__).parent))
import runs

pytestmark = pytest.mark.xdist_group("nursery")  # one worker starts one process for all of them


class Ear(Metrics):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def on_message(self, line: str) -> None:
        self.lines.append(line)


def steps_done(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b'"norm"') if path.is_file() else 0


def killed_at(nursery: runs.Nursery, texts: Path, folder: Path, precision: str, step: int, delay: float) -> None:
    """Start or resume a run, and kill it (kill -9) after this step was logged."""
    child = nursery.start("train", texts, folder, precision, 24, 23)
    nursery.wait_until(lambda: steps_done(folder) >= step)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    assert nursery.wait() == -signal.SIGKILL, "it was done before it was killed: the test shows nothing"


def history(folder: Path) -> list[dict[str, Any]]:
    """Return metrics.jsonl without times."""
    return [{name: value for name, value in line.items() if name != "seconds"} for line in read_metrics(folder)]


def by_loss(line: dict[str, Any]) -> float:
    return line.get("valid/loss", float("inf"))


def same_end(a: Path, b: Path) -> None:
    one, two = (read(list(manifest.steps(folder).values())[-1]) for folder in (a, b))
    assert {**one.values, "seconds": 0} == {**two.values, "seconds": 0}
    for kind in ("weights", "optimizer"):
        assert one.tensors[kind].keys() == two.tensors[kind].keys()
        for name, tensor in one.tensors[kind].items():
            assert torch.equal(tensor, two.tensors[kind][name]), f"{kind}: {name}"


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
def test_t2_killed_and_resumed_to_the_bit(tmp_path: Path, nursery: runs.Nursery, precision: str) -> None:
    """Epochs of 7 steps, checkpoints every 3: killed twice in the first epoch, after it, and at two random steps."""
    texts = runs.write_texts(tmp_path / "texts")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    nursery.start("train", texts, whole, precision, 24)
    assert nursery.wait() == 0
    order = dict(map(json.loads, (whole / "order.jsonl").read_text().splitlines()))
    assert len(order) == 24 and len(set(order.values())) == 24
    draw = random.Random(precision)
    for step in (3, 6, 9, draw.randint(11, 16), draw.randint(17, 22)):
        killed_at(nursery, texts, broken, precision, step, draw.uniform(0, 0.02))
    nursery.start("train", texts, broken, precision, 24)
    assert nursery.wait() == 0
    seen = [json.loads(line) for line in (broken / "order.jsonl").read_text().splitlines()]
    assert len(seen) > 24 and all(order[step] == what for step, what in seen)  # repeated steps read the same tokens
    assert history(broken) == history(whole)
    assert [line["step"] for line in history(whole) if "valid/loss" in line] == [8, 16, 24]
    same_end(whole, broken)
    for folder in (whole, broken):
        assert hub.resolve(folder).name == f"step-{min(history(whole), key=by_loss)['step']:08}"


@pytest.mark.parametrize("precision", ["bf16", "bf16-stream"])
def test_a_cpu_without_bf16_trains_in_fp32(tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message reports it, run.json keeps the requested precision, and the run can be resumed on any machine."""
    monkeypatch.setenv(hardware.HIDING, "bf16")
    texts, reports = runs.write_texts(tmp_path / "texts"), list[str]()
    run, folder = runs.run_of(texts, precision=precision, steps=3), tmp_path / "run"
    trainer = setup(run, folder, device="cpu", tell=reports.append)
    trainer.fit()
    assert trainer.autocast()._enabled is False
    assert any(f"precision={precision}" in line and "computes in fp32" in line for line in reports)
    assert json.loads((folder / "run.json").read_text())["precision"] == precision
    plain = setup(runs.run_of(texts, steps=3), tmp_path / "plain", device="cpu")
    plain.fit()
    for name, tensor in plain.model.state_dict().items():
        assert torch.equal(tensor, trainer.model.state_dict()[name]), name
    again = override(run, {"steps": 4})
    assert setup(again, folder, device="cpu", resume=True).fit().step == 4


def test_t2_epochs_are_where_the_kills_were_meant_to_be(tmp_path: Path) -> None:
    texts = runs.write_texts(tmp_path / "texts")
    trainer = setup(runs.run_of(texts), tmp_path / "run")
    assert len(Plan(trainer.splits.train, examples=6, length=runs.LENGTH, packs=True)) == 7


def test_a_stop_is_a_checkpoint(tmp_path: Path, nursery: runs.Nursery) -> None:
    """SIGTERM, as sent before a machine is taken away: the step is finished and saved, and no step is repeated."""
    texts = runs.write_texts(tmp_path / "texts")
    child = nursery.start("train", texts, tmp_path / "run", "fp32", 4000)
    nursery.wait_until(lambda: steps_done(tmp_path / "run") >= 5)
    os.kill(child, signal.SIGTERM)
    assert nursery.wait() == 1  # KeyboardInterrupt
    done = steps_done(tmp_path / "run")
    assert list(manifest.steps(tmp_path / "run"))[-1] == done >= 5


# -- T4


def begin(folder: Path) -> tuple[Path, Path]:
    """Return the texts, and a run of 4 steps on them."""
    torch.set_num_threads(1)
    texts = runs.write_texts(folder / "texts")
    setup(runs.run_of(texts, steps=4), folder / "run", callbacks=[Metrics()]).fit()
    return texts, folder / "run"


@pytest.fixture
def begun(tmp_path: Path) -> tuple[Path, Path]:
    return begin(tmp_path)


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same for tests that do not change it."""
    return begin(tmp_path_factory.mktemp("begun"))


def test_a_finished_run_goes_on_for_longer(begun: tuple[Path, Path]) -> None:
    texts, folder = begun
    trainer = setup(runs.run_of(texts, steps=6, batch=runs.Batch(examples=6, micro=2)), folder, resume=True)
    trainer.callbacks.append(Metrics())
    assert trainer.fit().step == 6 and steps_done(folder) == 6
    finished = setup(runs.run_of(texts, steps=6), folder, resume=True).fit()  # no step remains
    assert finished.scores == trainer.scores and "loss" in trainer.scores
    assert list(manifest.steps(folder)) == [4, 6]  # the best or the last two


@pytest.mark.parametrize(("change", "message"), [
    ({"optimizer": AdamW(lr=1e-3)}, "optimizer.lr: 0.01 then, 0.001 now"),
    ({"seed": 7}, "seed: its default then, 7 now"),
    ({"model": runs.model(n_layer=1)}, "model.decoder.depth: 2 then, 1 now"),
    ({"vocabulary": TrainedBPE(size=300)}, "vocabulary: .* then, .*TrainedBPE.* now"),
    ({"precision": "bf16"}, "precision: its default then, 'bf16' now"),
    ({"evaluate": Evaluate(every=8, best="perplexity")}, "evaluate.best: its default then, 'perplexity' now"),
])  # fmt: skip
def test_t4_another_description_is_refused(unchanged: tuple[Path, Path], change: dict[str, Any], message: str) -> None:
    texts, folder = unchanged
    with pytest.raises(ValueError, match=f"a different run: {message}"):
        setup(runs.run_of(texts, **{"steps": 6, **change}), folder, resume=True)


def test_t4_other_data_under_the_same_name_is_refused(begun: tuple[Path, Path]) -> None:
    texts, folder = begun
    before = texts.read_text()
    runs.write_texts(texts.parent, seed=1)
    with pytest.raises(ValueError, match="the data is not the one that .*step-00000004 was trained with"):
        setup(runs.run_of(texts, steps=6), folder, resume=True).fit()
    texts.write_text(before)
    assert setup(runs.run_of(texts, steps=6), folder, resume=True).fit().step == 6


def test_t4_another_tokenizer_under_the_same_name_is_refused(begun: tuple[Path, Path]) -> None:
    texts, folder = begun
    Bytes(special={"eos_token": "<|end|>", "pad_token": "<|padding|>"}).make([], folder / "tokenizer")
    with pytest.raises(ValueError, match="the (data|tokenizer) is not the one that .* was trained with"):
        setup(runs.run_of(texts, steps=6), folder, resume=True).fit()


@pytest.mark.parametrize("file", ["00000.input_ids", "00000.input_ids.sizes", "index.json"])
def test_t4_prepared_records_that_were_changed_are_refused(begun: tuple[Path, Path], file: str) -> None:
    """One changed token, record boundary or digest; no file changes its size."""
    texts, folder = begun
    place = next((folder / "data").glob("train-*"))
    before = (place / file).read_bytes()
    sizes = np.fromfile(place / "00000.input_ids.sizes", np.int64)
    sizes[:2] += (1, -1)
    digest = json.loads((place / "index.json").read_text())["digest"]
    after = {
        "00000.input_ids": bytes([before[0] ^ 1]) + before[1:],
        "00000.input_ids.sizes": sizes.tobytes(),
        "index.json": before.replace(digest.encode(), b"0" * 64),
    }[file]
    assert len(after) == len(before) and after != before
    (place / file).write_bytes(after)
    wrong = f"{place} is damaged; delete it to prepare it again .*digest"
    with pytest.raises(ValueError, match=wrong):
        setup(runs.run_of(texts, steps=6), folder, resume=True)
    shutil.rmtree(place)
    assert setup(runs.run_of(texts, steps=6), folder, resume=True).fit().step == 6


# -- one process in a folder


def test_a_second_process_is_refused_while_the_first_lives(tmp_path: Path, nursery: runs.Nursery) -> None:
    texts, folder = runs.write_texts(tmp_path / "texts"), tmp_path / "run"
    child = nursery.start("train", texts, folder, "fp32", 4000)
    nursery.wait_until(lambda: steps_done(folder) >= 1)
    kept = (folder / "run.json").read_bytes()
    try:
        with pytest.raises(ValueError, match=f"run is in use: process {child} on .* trains there"):
            setup(runs.run_of(texts, steps=4000), folder, resume=True)
        assert (folder / "run.json").read_bytes() == kept
    finally:
        os.kill(child, signal.SIGKILL)
        assert nursery.wait() == -signal.SIGKILL
    assert (folder / ".lock").read_text().startswith(f"process {child} ")  # the lock file remains, but locks nothing
    done = steps_done(folder)
    trainer = setup(runs.run_of(texts, steps=done + 2), folder, resume=True)
    assert trainer.fit().step == done + 2


def test_a_run_that_is_done_or_failed_lets_go(begun: tuple[Path, Path], nursery: runs.Nursery) -> None:
    """The lock is released while this process is still running."""
    texts, folder = begun
    done = setup(runs.run_of(texts, steps=5), folder, resume=True).fit()
    nursery.start("train", texts, folder, "fp32", 6)
    assert nursery.wait() == 0 and done.step == 5  # still in this process
    with pytest.raises(ValueError, match="has a different run") as failed:
        setup(runs.run_of(texts, seed=7), folder, resume=True)
    nursery.start("train", texts, folder, "fp32", 7)
    assert nursery.wait() == 0 and failed.value  # the exception keeps its frames alive


# -- nothing to go on from


def test_resume_where_no_run_is_says_so(tmp_path: Path) -> None:
    texts = runs.write_texts(tmp_path / "texts")
    with pytest.raises(ValueError, match="run does not exist: nothing to resume; start a run there without"):
        setup(runs.run_of(texts), tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    with pytest.raises(ValueError, match="run has no run: nothing to resume; start a run there without --resume"):
        setup(runs.run_of(texts), tmp_path / "run", resume=True)


def test_a_run_that_failed_before_its_first_checkpoint_does_not_block_its_folder(tmp_path: Path) -> None:
    texts, folder = runs.write_texts(tmp_path / "texts"), tmp_path / "run"

    class Failing(Metrics):
        def on_step(self, trainer: Any, done: Any) -> None:
            super().on_step(trainer, done)
            raise RuntimeError("out of luck")

    first = runs.run_of(texts, vocabulary=TrainedBPE(size=300), model=runs.model(vocab_size=300))
    with pytest.raises(RuntimeError, match="out of luck"):
        setup(first, folder, callbacks=[Failing()]).fit()
    assert (folder / "run.json").is_file() and (folder / "tokenizer").is_dir()
    trainer = setup(runs.run_of(texts, steps=2, seed=1), folder, callbacks=[Metrics()])  # with other values, and bytes
    assert trainer.fit().step == 2 and len(trainer.tokenizer) == runs.VOCABULARY
    assert [line["step"] for line in read_metrics(folder) if "loss" in line] == [1, 2]
    with pytest.raises(ValueError, match="already has a run"):
        setup(runs.run_of(texts, steps=2), folder)


def test_a_run_that_failed_before_its_first_step_leaves_no_vocabulary(tmp_path: Path) -> None:
    """A new run trains its own tokenizer; a foreign one is neither used nor removed."""
    texts, folder = runs.write_texts(tmp_path / "texts"), tmp_path / "run"
    first = runs.run_of(texts, vocabulary=TrainedBPE(size=300), batch=Batch(examples=6, length=99))
    with pytest.raises(ValueError, match="batch.length: 99 is more"):
        setup(first, folder)
    trainer = setup(runs.run_of(texts), folder)
    assert len(trainer.tokenizer) == runs.VOCABULARY
    other = tmp_path / "other" / "tokenizer"
    TrainedBPE(size=300).make(["a"], other)
    before = sorted((path.name, path.read_bytes()) for path in other.iterdir())
    with pytest.raises(ValueError, match=r"holds other files \(tokenizer\)"):
        setup(runs.run_of(texts), other.parent)
    assert sorted((path.name, path.read_bytes()) for path in other.iterdir()) == before


def test_while_it_runs_a_folder_is_not_free_before_its_first_checkpoint(tmp_path: Path, nursery: runs.Nursery) -> None:
    texts = runs.write_texts(tmp_path / "texts")
    first = setup(runs.run_of(texts), tmp_path / "run")
    nursery.start("train", texts, first.folder, "fp32", 2)
    assert nursery.wait() == 1 and not manifest.steps(first.folder)  # refused: without the lock it would train


def test_resume_before_the_first_checkpoint_says_where_it_starts(tmp_path: Path) -> None:
    texts, lines = runs.write_texts(tmp_path / "texts"), list[str]()
    setup(runs.run_of(texts, steps=2), tmp_path / "run")  # as if it were killed here

    assert setup(runs.run_of(texts, steps=2), tmp_path / "run", resume=True, callbacks=[Ear(lines)]).fit().step == 2
    assert lines == [f"{tmp_path / 'run'} has no checkpoint: training starts at step 0"]
    lines.clear()
    setup(runs.run_of(texts, steps=4), tmp_path / "run", resume=True, callbacks=[Ear(lines)]).fit()
    setup(runs.run_of(texts, steps=2), tmp_path / "fresh", callbacks=[Ear(lines)]).fit()
    assert lines == []


def test_a_folder_is_one_runs(unchanged: tuple[Path, Path]) -> None:
    texts, folder = unchanged
    with pytest.raises(ValueError, match="already has a run: --resume continues it"):
        setup(runs.run_of(texts), folder)
    assert (folder / "run.json").is_file() and af.load(folder).spec.decoder.depth == 2
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["seed"] == 0 and environment["torch"] == torch.__version__ and environment["commit"]
    assert None not in environment.values()


def test_a_damaged_checkpoint_is_passed_over_and_told(begun: tuple[Path, Path]) -> None:
    texts, folder = begun
    path = folder / "checkpoints" / "step-00000004" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    lines: list[str] = []

    trainer = setup(runs.run_of(texts, steps=4), folder, resume=True, callbacks=[Ear(lines)]).fit()
    assert trainer.step == 4 and len(lines) == 1 and "skipped: " in lines[0] and "model.safetensors" in lines[0]
    assert manifest.fault(folder / "checkpoints" / "step-00000004") is None  # saved again by the resumed run


def test_a_run_survives_its_own_json(unchanged: tuple[Path, Path]) -> None:
    texts, folder = unchanged
    run = runs.run_of(texts, steps=4)
    assert read_run(folder / "run.json") == run and not differences(run, run)
    moved = override(run, {"data.train": TextFiles(path="elsewhere")})
    assert differences(run, moved)
