"""Tables as people have them: labels that are numbers, rows without labels, files with one class, weights, Ctrl-C."""

from __future__ import annotations

import json
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
import vocabularies
from anyformer import cli
from anyformer.data import CSV, Held, JSONLines, Oversample
from anyformer.objectives.classify import Classify
from anyformer.objectives.examples import label_number
from anyformer.train.baseline import class_weights_of, frequency_baseline
from tiny import encoder

STARS = ("1", "2", "5")
TINY = ["--set", "steps=2", "--set", "evaluate.every=2", "--set", "keep.every=2", "--set", "model.encoder.depth=1",
        "--set", "vocabulary.size=280", "--device", "cpu"]  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    rows = [f"a text of {star} stars,{star}\n" for star in STARS for _ in range(6)]
    (tmp_path / "stars.csv").write_text("text,label\n" + "".join(rows))
    return tmp_path


def test_a_number_is_no_index_of_labels_that_are_numbers() -> None:
    """0 is not the first of the labels 1, 2 and 5; "1.0" is the label "1"."""
    found = []
    for value in ("5", 1, "2.0", 5.0):
        found.append(STARS[label_number(value, STARS, "label")])
    assert found == ["5", "1", "2", "5"]
    for value in ("0", 3, "good", float("nan")):
        with pytest.raises(ValueError, match="is not known; valid: 1, 2, 5"):
            label_number(value, STARS, "label")
    assert label_number("1", ("no", "yes"), "label") == 1  # names: a number is an index


def test_a_file_is_one_list_of_objects(tmp_path: Path) -> None:
    """Alpaca's file is one JSON list; lines are still read one by one, also if the first is a list."""
    (tmp_path / "x.json").write_text(json.dumps([{"text": "a"}, 5, {"text": "b"}], indent=1))
    rows = [*JSONLines(path=str(tmp_path / "x.json")).raw()]
    assert [row.example and row.example["text"] for row in rows] == ["a", None, "b"]
    assert rows[1].place.endswith("x.json:2") and rows[1].problem == "not a JSON object but a int"
    (tmp_path / "x.json").write_text('["a list"]\n{"text": "a"}\n')
    assert [row.problem for row in JSONLines(path=str(tmp_path / "x.json")).raw()] == [
        "not a JSON object but a list",
        "",
    ]


@pytest.mark.parametrize("weights, why", [
    ("1", "write \"balanced\", or label=number"), ("1=2,1=3", "a label is given twice"),
    ("3=2", "no label '3'; valid: 1, 2, 5"), ("1=nan", "expected a finite number"),
])  # fmt: skip
def test_weights_that_mean_nothing(weights: str, why: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--csv", "stars.csv", "--label", "label", "--class-weights", weights]) == 2
    assert why in capsys.readouterr().err


def test_the_baseline_has_the_weights_of_the_loss() -> None:
    """With balanced weights, the best constant prediction is uniform: the loss is log(classes)."""
    objective = Classify(labels=STARS, balanced=True).with_class_counts({"1": 80, "2": 15, "5": 5})
    weights = class_weights_of(objective)
    loss, right = frequency_baseline([80_000, 15_000, 5_000], [8, 1, 1], weights)
    assert loss == pytest.approx(float(torch.log(torch.tensor(3.0))), abs=1e-3) and right == 0.8
    plain = frequency_baseline([80, 15, 5], [8, 1, 1])
    assert plain == frequency_baseline([80, 15, 5], [8, 1, 1], [1.0, 1.0, 1.0]) and plain[0] < loss
    assert class_weights_of(objective.plain) is None


def test_a_run_with_repeated_rows_is_evaluated(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oversampling is for training only: every row of another file, and of the training split, counts once."""
    source = CSV(path="stars.csv", required=("text", "label"))
    assert Oversample(source=Held(source=source, out=False)).whole == source
    with Path("stars.csv").open("a") as file:
        file.write("a text of 5 stars,5\n" * 6)
    command = ["train", "--csv", "stars.csv", "--label", "label", "--oversample", *TINY]
    assert cli.main(command) == 0, capsys.readouterr().err
    capsys.readouterr()
    for more, number in ((["--csv", "stars.csv"], 24), (["--split", "train"], 21)):
        assert cli.main(["eval", "runs/stars", *more, "--json", "--device", "cpu"]) == 0, capsys.readouterr().err
        assert json.loads(capsys.readouterr().out)["examples"] == number


def test_a_file_with_some_of_the_models_labels(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model that is not the folder of a run, on a file with one of its classes and an unknown label."""
    af.save(af.build(encoder(labels=STARS), seed=0), vocabularies.bert(place / "bert"), format="hf")
    for rows in (["a,5", "b,5"], ["a,5", "b,5", "c,9"]):
        Path("five.csv").write_text("\n".join(["text,label", *rows]))
        assert cli.main(["eval", "bert", "--csv", "five.csv", "--label", "label", "--json", "--device", "cpu"]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out)["examples"] == 2 and ("label '9' is not known" in err) == (len(rows) == 3)


def test_ctrl_c_prints_the_command_that_continues(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from anyformer.train.trainer import Trainer

    launch = Trainer.launch

    def interrupted(self: Any, *arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return launch(self, *arguments)

    monkeypatch.setattr(Trainer, "launch", interrupted)
    out = "runs/my stars"
    command = ["train", "--csv", "stars.csv", "--label", "label", *TINY, "--set", "steps=4", "--out", out]
    assert cli.main(command) == 130
    output = capsys.readouterr().out
    (line,) = [line for line in output.splitlines() if "--resume" in line]
    assert line == "`anyformer train 'runs/my stars' --resume` continues it"
    monkeypatch.setattr(Trainer, "launch", launch)
    assert cli.main(shlex.split(line.split("`")[1])[1:]) == 0, capsys.readouterr().err
    assert "from step " in capsys.readouterr().out
