"""`anyformer train`: its output, and one line for each user mistake."""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import anyformer as af
from anyformer import cli
from anyformer.recipes import recipe, recipes
from anyformer.specs.codec import override, to_json
from anyformer.train.progress import read_metrics
from anyformer.train.run import read_run
from anyformer.weights import manifest

sys.path.insert(0, str(Path(__file__).parent))
import runs


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with texts and run.json, which is the working folder."""
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    runs.write_texts(tmp_path / "texts")
    run = runs.run_of(Path("texts/text.txt"), steps=4, evaluate=runs.Evaluate(every=2, sample="ab"))
    (tmp_path / "run.json").write_text(to_json(run))
    return tmp_path


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line of a mistake."""
    assert cli.main(["train", *arguments]) == 2
    out, err = capsys.readouterr()
    assert err.count("\n") == 1 and "Traceback" not in err
    return err


def test_a_folder_of_other_files(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "texts holds other files (text.txt): give a new folder; --out DIR names one"
    assert line in error_of(capsys, "run.json", "--out", "texts")


def test_a_run_can_be_counted(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run.json by its path, and by its folder before and after training."""

    def count(name: str) -> int:
        assert cli.main(["count", name, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["parameters"]

    wanted = af.count(read_run(Path("run.json")).model).parameters
    Path("begun").mkdir()
    Path("begun/run.json").write_text(Path("run.json").read_text())
    assert count("run.json") == count("begun") == wanted
    assert cli.main(["train", "run.json", "--out", "done", "--set", "steps=1"]) == 0
    capsys.readouterr()
    assert count("done") == wanted
    tuned = override(read_run(Path("run.json")), {"model": {"kind": "Pretrained", "path": "done"}})
    Path("tuned.json").write_text(to_json(tuned))
    assert count("tuned.json") == wanted


def test_train_generate_and_go_on(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "run.json", "--out", "here", "--set", "optimizer.lr=2e-3"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "step 2: loss " in out and "  | ab" in out and "unigram" in out
    assert json.loads(Path("here/run.json").read_text())["optimizer"]["lr"] == 2e-3
    lines = [json.loads(line) for line in Path("here/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4]
    assert cli.main(["generate", "here", "ab", "--max-new-tokens", "3"]) == 0
    assert capsys.readouterr().out
    assert "here already has a run: --resume continues it" in error_of(capsys, "run.json", "--out", "here")
    wrong = error_of(capsys, "run.json", "--out", "here", "--resume")
    assert "here has a different run: optimizer.lr: 0.002 then, 0.01 now" in wrong
    assert cli.main(["train", "here", "--resume", "--set", "steps=6"]) == 0  # a folder is its own description
    assert "from step 4" in capsys.readouterr().out and list(manifest.steps(Path("here")))[-1] == 6


def test_recipes_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out and about for name, about in recipes().items()) and "quickstart" in out
    assert cli.main(["train", "quickstart", "--show", "--set", "seed=7"]) == 0
    assert json.loads(capsys.readouterr().out)["seed"] == 7


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_is_json(name: str, tmp_path: Path) -> None:
    run = recipe(name)
    (tmp_path / "run.json").write_text(to_json(run))
    assert read_run(tmp_path / "run.json") == run and run.name == name


def test_mistakes_in_the_data(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.txt").write_text("")
    wrong = error_of(capsys, "run.json", "--out", "a", "--set", "data.train.path=empty.txt")
    assert "the train data has no usable example" in wrong
    assert "nowhere.txt: no such file" in error_of(
        capsys, "run.json", "--out", "b", "--set", "data.train.path=nowhere.txt"
    )
    wrong = error_of(capsys, "run.json", "--out", "c", "--set", "batch.length=64")
    assert "batch.length: 64 is more than the 32 tokens that this model takes" in wrong
    small = ("--set", "model.embedding.tokens.vocab_size=100", "--set", "model.head.vocab_size=100")
    wrong = error_of(capsys, "run.json", "--out", "d", *small)
    assert "the vocabulary has 258 tokens, the model 100: they do not belong together" in wrong


def test_a_loss_that_is_not_finite_is_one_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, with the step and the last good checkpoint; --resume continues from it."""
    wild = ("--set", "optimizer.lr=1e38", "--set", "schedule.warmup=1", "--set", "keep.every=1")
    assert cli.main(["train", "run.json", "--out", "here", *wild]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "Traceback" not in err and "bug" not in err
    assert "is not finite; the first values that are not finite appear in " in err
    done = list(manifest.steps(Path("here")))
    assert f"the checkpoint of step {done[-1]} is good" in err and f"step {done[-1] + 1}: " in err


# -- disk errors


def test_t3_a_full_disk_is_one_line_and_nothing_is_lost(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From step 3 on, no file above 50 kB can be written, and the model is larger."""
    assert cli.main(["train", "run.json", "--out", "here", "--set", "steps=2"]) == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        line = error_of(capsys, "run.json", "--out", "here", "--resume")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "here/checkpoints/step-00000003/model.safetensors: File too large" in line
    assert "--resume continues from step 2" in line
    assert list(manifest.steps(place / "here")) == [2]
    assert cli.main(["train", "run.json", "--out", "here", "--resume"]) == 0
    assert list(manifest.steps(place / "here"))[-1] == 4


def test_t3_a_folder_that_cannot_be_written_is_one_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "locked").mkdir()
    (place / "locked").chmod(0o555)
    locked = Path("/sys") if os.getuid() == 0 else place / "locked"  # even root cannot write there
    wrong = error_of(capsys, "run.json", "--out", str(locked / "run"))
    assert f"{locked / 'run'}: " in wrong and any(why in wrong for why in ("denied", "not permitted", "Read-only"))


def test_other_services_are_told_if_asked(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fakes of both packages record their arguments; a missing package is one line."""
    events: dict[str, list[tuple[str, float, int]]] = {"tensorboard": [], "wandb": []}
    ended: list[str] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int) -> None:
            assert Path(folder).parent.name == "seen" and purge_step == 1

        def add_scalar(self, name: str, value: float, step: int) -> None:
            events["tensorboard"].append((name, value, step))

        def close(self) -> None:
            ended.append("tensorboard")

    class Run:
        def log(self, values: dict[str, float], step: int) -> None:
            events["wandb"] += [(name, value, step) for name, value in values.items()]

        def finish(self) -> None:
            ended.append("wandb")

    def init(**options: object) -> Run:
        assert options["id"] == "seen" and json.dumps(options["config"])
        return Run()

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    both = ("--log", "tensorboard", "--log", "wandb")
    assert cli.main(["train", "run.json", "--out", "seen", "--set", "steps=3", *both]) == 0
    logged = [line for line in read_metrics(Path("seen")) if "loss" in line]
    for name, lines in events.items():
        assert [(v, s) for n, v, s in lines if n == "train/loss"] == [(line["loss"], line["step"]) for line in logged]
        assert [s for n, _, s in lines if n == "valid/loss"] == [2, 3], name
    assert sorted(ended) == ["tensorboard", "wandb"]
    capsys.readouterr()
    for name in ("torch.utils.tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
        short = name.split(".")[-1]
        wrong = error_of(capsys, "run.json", "--out", short, "--log", short)
        assert f"--log {short} needs {short}: pip install {short}" in wrong
