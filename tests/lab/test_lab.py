"""The lab: trials that are scheduled, resumed and refused; grids; commands."""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import signal
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anyformer import cli
from anyformer.lab.grid import BASE, GridSearch, apply_changes, value_labels, work
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Row, Trial, Trials, Values
from anyformer.specs.codec import to_json
from anyformer.train.run import Keep, read_run
from anyformer.train.trainer import Callback

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
import runs

# -- trials -----------------------------------------------------------------------------------------------------------


def squares(values: Values, place: Place) -> list[Row]:
    """Return the square of a number, and append the number to a file to count the calls."""
    with (place.shared.parent / "asked").open("a") as file:
        file.write(f"{values['number']}\n")
    if values["number"] == 3:
        raise FloatingPointError("no threes")
    return [{"square": values["number"] ** 2}, {"square": float("nan")}]


def killed_once(values: Values, place: Place) -> list[Row]:
    """Kill the process of the second trial at its first run."""
    mark = place.shared.parent / "killed"
    if values["number"] == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return squares(values, place)


def numbered(*numbers: int) -> list[Trial]:
    return [Trial(f"n{number}", {"number": number}) for number in numbers]


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    """After the time limit no trial starts; rows are in the order of the trials, with null for NaN."""
    trials = Trials(numbered(2, 1, 3), squares, tmp_path, "cpu")
    for jobs in (1, 2):
        assert trials.perform(jobs, until=time.monotonic()) == [] and len(trials.remaining) == 3
    Trials(numbered(1), squares, tmp_path, "cpu").perform()
    rows = trials.perform()
    assert (tmp_path / "asked").read_text().split() == ["1", "2", "3"]
    assert [row["trial"] for row in rows] == ["n2", "n2", "n1", "n1", "n3"]
    assert rows[0]["square"] == 4 and rows[1]["square"] is None and rows[4]["failed"] == "no threes"
    assert rows == [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]


class Steps(Callback):
    """Notes every step, and stops the training once."""

    def __init__(self, stop_at: int | None) -> None:
        self.steps: list[int] = []
        self.stop_at = stop_at

    def on_step(self, trainer: Any, result: Any) -> None:
        self.steps.append(trainer.step)
        if trainer.step == self.stop_at:
            raise KeyboardInterrupt


def test_what_callbacks_measured_is_measured_again(place: Path) -> None:
    """A stopped training goes on from its checkpoint; with callbacks it starts again."""
    run = runs.run_of(runs.write_texts(place), steps=4).replace(keep=Keep(every=1, last=1))
    here = Place(place / "trial", place / "shared", "cpu")
    with pytest.raises(KeyboardInterrupt):
        here.train(run, Steps(stop_at=3))
    again = Steps(stop_at=None)
    here.train(run, again)
    assert again.steps == [1, 2, 3, 4]


def test_mistakes_of_trials(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two trials have the name n1"):
        Trials(numbered(1, 2, 1), squares, tmp_path, "cpu")
    Trials(numbered(1), squares, tmp_path, "cpu").perform()
    with pytest.raises(ValueError, match="has a trial with different values; .*--out DIR"):
        Trials([Trial("n1", {"number": 7})], squares, tmp_path, "cpu")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "results.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"mine holds other files \(results.jsonl\): give a new folder; --out DIR"):
        Trials(numbered(1), squares, tmp_path / "mine", "cpu")


def wrong_once(values: Values, place: Place) -> list[Row]:
    """The first trial raises an error until a file exists."""
    if values["number"] == 0 and not (place.shared.parent / "mended").exists():
        raise KeyError("nought")
    return squares(values, place)


def test_an_error_of_one_trial_leaves_the_others(tmp_path: Path) -> None:
    """The other trials finish, the command ends with one line, and the next command runs the failed trial again."""
    trials, reports = Trials(numbered(0, 1, 2), wrong_once, tmp_path, "cpu"), list[str]()
    with pytest.raises(ValueError, match="^n0: KeyError: 'nought'$"):
        trials.perform(tell=reports.append)
    assert [line.split(",")[0] for line in reports] == ["n0: KeyError: 'nought'", "n1: done", "n2: done"]
    assert [trial.name for trial in trials.remaining] == ["n0"]
    (tmp_path / "mended").touch()
    assert len(trials.perform()) == 6 and not (tmp_path / "trials/n0/error.txt").exists()


@pytest.mark.slow
def test_a_killed_process_is_replaced(tmp_path: Path) -> None:
    rows = Trials(numbered(0, 1, 2), killed_once, tmp_path, "cpu").perform(jobs=2)
    assert (tmp_path / "killed").exists()
    assert [row["square"] for row in rows if row["square"] is not None] == [0, 1, 4]


@pytest.mark.parametrize("kills", [3, 4])
def test_killed_processes_are_replaced_three_times(kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pools run trials in this process; the first `kills` pools break at the second trial."""
    pools: list[object] = []

    class Pool(concurrent.futures.ThreadPoolExecutor):
        def __init__(self, jobs: int, *_: Any, **options: Any) -> None:
            super().__init__(1)
            pools.append(self)

        def submit(self, function: Any, /, *arguments: Any) -> Any:
            if len(pools) <= kills and arguments[1]["number"] == 1:
                raise BrokenProcessPool
            return super().submit(function, *arguments)

    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", Pool)
    trials = Trials(numbered(0, 1, 2), squares, tmp_path, "cpu")
    if kills == 4:
        with pytest.raises(ValueError, match="were killed 4 times; if memory is short, use fewer than 2 jobs"):
            trials.perform(jobs=2)
    else:
        assert [row["square"] for row in trials.perform(jobs=2)][::2] == [0, 1, 4]
    assert len(pools) == 4 and (tmp_path / "asked").read_text().count("0") == 1  # finished trials do not run again


@pytest.mark.slow
def test_a_killed_worker_of_ray_is_replaced(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    rows = Trials(numbered(0, 1, 2), killed_once, tmp_path, "cpu").perform(jobs=2, on="ray")
    assert (tmp_path / "killed").exists()
    assert [row["square"] for row in rows if row["square"] is not None] == [0, 1, 4]


# -- grids ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with texts and run.json, which becomes the working directory."""
    monkeypatch.chdir(tmp_path)
    runs.write_texts(tmp_path / "texts")
    run = runs.run_of(tmp_path / "texts/text.txt", steps=2, evaluate=runs.Evaluate(every=1))
    (tmp_path / "run.json").write_text(to_json(run))
    return tmp_path


GRID = ("run.json", "--set", "optimizer.lr=0.01,0.001", "--device", "cpu")


def test_grid(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A grid runs every combination; a deleted trial runs again and gives the same bits."""
    command = ["lab", "grid", *GRID, "--set", "decoder.depth=1,2", "--jobs", "1", "--out", "grid"]
    assert cli.main(command) == 0
    shown = capsys.readouterr().out
    rows = [json.loads(line) for line in Path("grid/results.jsonl").read_text().splitlines()]
    assert len(rows) == 4 * 2 and {(row["optimizer.lr"], row["decoder.depth"], row["seed"]) for row in rows} == {
        (lr, depth, 0) for lr in (0.01, 0.001) for depth in (1, 2)
    }
    assert len({row["loss"] for row in rows}) == 8 and len({row["parameters"] for row in rows}) == 2
    assert (place / "grid/plot.png").stat().st_size > 1000 and "spread" in shown
    before, weights = Path("grid/results.jsonl").read_bytes(), written("grid")
    shutil.rmtree("grid/trials/lr=0.01,depth=2,seed=0")
    assert cli.main(command) == 0 and "1 of 1" in capsys.readouterr().err
    assert Path("grid/results.jsonl").read_bytes() == before and written("grid") == weights


def test_runs_that_are_compared_go_to_their_last_step(place: Path) -> None:
    """Runs do not stop early, unless the grid sets patience."""
    base = read_run(place / "run.json")
    assert base.evaluate.patience is not None and GridSearch(base, {}).base.evaluate.patience is None
    run = training_run("x", base.model, base.data, "cpu", steps=9, batch=2, length=8, lr=1e-3, every=1)
    assert run.evaluate.patience is None and not run.keep.best
    assert apply_changes(GridSearch(base, {}).base, {"evaluate.patience": 2}).evaluate.patience == 2


@pytest.mark.parametrize(("steps", "wanted"), [(25, [24, 25]), (7, [7]), (20, [19, 20])])
def test_without_held_out_data_the_last_tenth_counts(steps: int, wanted: list[int], place: Path) -> None:
    """With training loss 1 / step, the result is its mean over the last tenth of the steps, at least one step."""
    lines = [{"step": step, "tokens": 8 * step, "loss": 1 / step} for step in range(1, steps + 1)]
    done = place / "trial"
    done.mkdir()
    (done / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"step": steps, "t": 1}]))
    trained = SimpleNamespace(shared=place / "shared", train=lambda run: SimpleNamespace(folder=done))
    (place / BASE).write_text((place / "run.json").read_text())
    (row,) = work({"optimizer.lr": 0.1, "parameters": 5}, trained)
    assert row["step"] == steps and row["tokens"] == 8 * steps
    assert row["loss"] == pytest.approx(sum(1 / step for step in wanted) / len(wanted))


def test_values_of_a_grid_are_told_apart(place: Path) -> None:
    """Labels differ for Parts of one kind with different fields, and for texts with the same beginning."""
    wide = [{"kind": "MLP", "width": width} for width in (8, 16)]
    settings = {"model.decoder.layers.feedforward.op": [*wide, {"kind": "GatedMLP", "width": 8}]}
    names = [trial.name for trial in GridSearch(read_run(place / "run.json"), settings).trials]
    assert names == ["op=_kind_MLP_width_8_,seed=0", "op=_kind_MLP_width_16_,seed=0", "op=GatedMLP,seed=0"]
    assert list(value_labels("x", ["a" * 70 + "b", "a" * 70 + "c"]).values()) == ["a" * 60 + "-1", "a" * 60 + "-2"]


def written(folder: str) -> dict[str, bytes]:
    found = {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("model.safetensors")}
    assert found
    return found


@pytest.mark.slow
def test_many_workers_write_the_files_of_one(place: Path) -> None:
    """Eight trainings run one after another, in two processes, and on two Ray workers if Ray is installed."""
    command = ["lab", "grid", *GRID, "--set", "decoder.depth=1,2", "--seeds", "2", "--out"]
    assert cli.main([*command, "one", "--jobs", "1"]) == 0
    losses = [json.loads(line)["loss"] for line in Path("one/results.jsonl").read_text().splitlines()]
    assert len(set(losses)) == len(losses) == 16
    for on in ("here", "ray"):
        if on == "ray":
            pytest.importorskip("ray")
        assert cli.main([*command, on, "--jobs", "2", "--on", on]) == 0
        assert Path("one/results.jsonl").read_bytes() == Path(on, "results.jsonl").read_bytes()
        assert written("one") == written(on) and len({name.split("/")[1] for name in written(on)}) == 8


@pytest.mark.parametrize("arguments, line", [
    (("grid", *GRID, "--set", "decoder.dept=1"), "did you mean 'depth'?"),
    (("grid", *GRID, "--set", "model.width=0"), "width is 0"),
    (("grid", *GRID, "--seeds", "0"), "--seeds: 0; it must be at least 1"),
    (("grid", *GRID, "--set", "optimizer.lr=1"), "one address is given twice"),
    (("grid", "run.json", "--set", "steps=2,2"), "--set steps: 2 is given twice"),
    (("grid", "run.json", "--set", "seed=1,2"), "which trains every combination with the seeds 0 to N - 1"),
    (("grid", "run.json", "--seeds", "1000000000"), "1,000,000,000 trainings; a grid has at most 100,000"),
    (("grid", "run.json", "--set", 'objective={"kind": "Masked"}'), "a model that sees both sides"),
    (("run", "masking-rate", "--form", "tiny", "--data", "nothing.txt"), "nothing.txt: no such file or folder"),
    (("run", "masking-rate", "--form", "tiny", "--data", "empty.txt"), "--data empty.txt: it contains no text"),
    (("grid", "run.json", "--set", "steps"), "--set takes PATH=VALUE,VALUE,..., got 'steps'"),
    (("grid", "shakespear"), "did you mean 'shakespeare'?"),
    (("grid", *GRID, "--on", "rays"), "did you mean 'ray'?"),
    (("grid", *GRID, "--jobs", "0"), "--jobs is 0"),
    (("run", "induction-head"), "did you mean 'induction-heads'?"),
    (("run", "induction-heads", "--budget", "0"), "--budget: 0 minutes; it must be above 0 and finite"),
    (("run", "induction-heads", "--budget", "0.01"), "the smallest form of induction-heads takes about 0.1 minutes"),
    (("run", "induction-heads", "--form", "big"), "induction-heads has no form 'big'"),
    (("run", "induction-heads", "--form", "tiny", "--data", "x"), "generates its own data; leave --data out"),
    (("rn",), "no action 'rn'"), ((), "give an action"),
], ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")  # fmt: skip
def test_mistakes(arguments: tuple[str, ...], line: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "empty.txt").touch()
    assert cli.main(["lab", *arguments]) == 2
    err = capsys.readouterr().err
    assert line in err and err.count("\n") == 1
