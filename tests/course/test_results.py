"""The stored results: files, pages that are made from them, and what `anyformer lab` and `show` say about them."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from anyformer import cli
from anyformer.data import Data, TextFiles
from anyformer.lab.experiment import Verdict, perform
from anyformer.lab.registry import experiment, experiments
from anyformer.lab.training import guessing_loss, training_run
from anyformer.lab.trials import Place
from anyformer_course import results, show
from anyformer_course.lab.runs import writer
from anyformer_course.results import __main__ as storing

ROOT = Path(__file__).parents[2]
RUN = {"form", "claim", "verdict", "seeds", "figure", "figures", "time", "machine", "commit"}


def test_every_experiment_has_a_file() -> None:
    assert results.names() == sorted(experiments())


@pytest.mark.parametrize("name", results.names())
def test_files(name: str) -> None:
    record = results.read(name)
    assert record["experiment"] == name and record["lecture"]
    for run in record["runs"]:
        assert {*run} - {"counted"} == RUN and run["verdict"] in ("holds", "does not hold", None)
        assert run.get("counted") or run["seeds"] >= 1
        sentence = run["figure"].replace("**", "")
        assert sentence.startswith(run["verdict"] or "no verdict"), "the sentence and the verdict agree"
    judged = results.judged_run(record)
    if judged is None:  # its design is new: a run of the full form follows
        assert record["why"].startswith("Needs a GPU: ") and not record["plot"]
        return
    assert judged["form"] != "tiny" and judged["figures"]
    assert bool(record["why"]) == (judged["verdict"] == "does not hold"), (
        "`why` is given if, and only if, the claim does not hold"
    )
    if record["plot"]:
        assert results.plot_of(record) is not None


def test_pages_are_up_to_date() -> None:
    found = importlib.util.spec_from_file_location("lab_pages", ROOT / "docs" / "lab_pages.py")
    assert found is not None and found.loader is not None
    module: Any = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    for path, text in module.pages().items():
        assert path.read_text("utf-8") == text, "run python docs/lab_pages.py"
        for name in results.names():
            assert name in text


def test_the_rows_of_the_lectures_have_the_stored_verdict() -> None:
    text = (ROOT / "docs" / "lectures.md").read_text("utf-8")
    rows = re.findall(r"^.*`anyformer lab run ([\w-]+)` \| (holds|does not hold|no verdict)\b.*$", text, re.M)
    assert len(rows) > 20
    for name, verdict in rows:
        judged = results.judged_run(results.read(name))
        assert verdict == ("no verdict" if judged is None else judged["verdict"]), name


def test_show_a_claim() -> None:
    shown = show("claim", "neighbours")
    record = results.read("neighbours")
    judged = results.judged_run(record)
    assert judged is not None and shown.says.startswith(f"{record['lecture']} [{record['paper']}]: {judged['verdict']}")
    claim, figures, runs = shown.tables
    assert claim.rows == [(judged["form"], judged["claim"])] and dict(figures.rows) == judged["figures"]
    assert [row[:2] for row in runs.rows] == [(run["form"], run["verdict"]) for run in record["runs"]]
    with pytest.raises(ValueError, match="no stored result of 'low-rnk'; did you mean 'low-rank'"):
        show("claim", "low-rnk")


def test_show_a_claim_without_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    record = {**results.read("low-rank"), "runs": [], "plot": None, "why": "Needs a GPU: three trainings."}
    monkeypatch.setattr("anyformer_course.shows.claim.read", lambda name: record)
    shown = show("claim", "low-rank")
    assert "not judged yet. Needs a GPU: " in shown.says and "`anyformer lab run low-rank --form full`" in shown.says
    assert shown.tables[0].rows == [("full", experiment("low-rank").CLAIM)]
    assert len(shown.draw().axes[0].lines) == 2


@pytest.mark.parametrize("name", ["norm-placement", "neighbours"])
def test_the_plot_of_a_claim(name: str) -> None:
    """The stored plot if there is one, otherwise bars of the figures."""
    pytest.importorskip("matplotlib")
    (axis,) = show("claim", name).draw().axes
    stored = name == "norm-placement"
    assert bool(axis.images) == stored and bool(axis.patches) != stored


def test_show_published_figures() -> None:
    (table,) = show("published", "parameters", model="GPT-3").tables
    assert ("GPT-3", 174.6e9) in [(row[0], row[2]) for row in table.rows]
    assert table.rows[0][3] == pytest.approx(table.rows[0][2], rel=0.02), "our count"
    with pytest.raises(ValueError, match="did you mean 'tokens'"):
        show("published", "token")
    with pytest.raises(ValueError, match="no published glue of a model named 'nothing'"):
        show("published", "glue", model="nothing")


def test_a_tiny_form_gives_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so, and the stored verdict follows."""
    command = ["lab", "run", "few-shot", "--form", "tiny", "--jobs", "1", "--device", "cpu", "--out", str(tmp_path)]
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    assert "tiny form: too small to judge\nstored verdict (full form, 1 seed, one H200): holds" in out
    assert "eleven shots add -1, -1, 6, 92, 92 and 91 %" in out and "plots/few-shot.png" in out
    written = json.loads((tmp_path / "claim.json").read_text())
    assert written["holds"] is None and written["verdict"] == "too small to judge" and written["figures"]
    with pytest.raises(ValueError, match="the tiny form has no verdict"):
        storing.store(tmp_path)


def test_storing_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run replaces the stored run of its form; a claim that does not hold needs a reason."""
    for module in (results, storing):
        monkeypatch.setattr(module, "HERE", tmp_path)
        monkeypatch.setattr(module, "PLOTS", (tmp_path / "plots", tmp_path))
    (tmp_path / "few-shot.json").write_bytes((ROOT / "src/anyformer_course/results/few-shot.json").read_bytes())
    folder = tmp_path / "run"
    folder.mkdir()
    claim = {"name": "few-shot", "form": "full", "claim": "new", "holds": False, "verdict": "does not hold", "seeds": 3,
            "figures": {"mean": 0.51234567, "worst": None}, "machine": "a GPU", "seconds": 7.2, "device": "cpu",
            "cpu_seconds": 30.4}  # fmt: skip
    (folder / "claim.json").write_text(json.dumps(claim))
    (folder / "plot.png").write_bytes(b"a plot")
    with pytest.raises(ValueError, match="say why"):
        storing.store(folder)
    storing.store(folder, "too short", "abc")
    record = results.read("few-shot")
    assert [run["form"] for run in record["runs"]] == ["full", "small"] and record["why"] == "too short"
    run = record["runs"][0]
    assert (run["figure"], run["seeds"], run["commit"]) == ("**does not hold**: mean 0.5123", 3, "abc")
    assert (
        run["time"] == "30 s of CPU time"
        and run["figures"] == {"mean": 0.51234567}
        and (tmp_path / "few-shot.png").read_bytes() == b"a plot"
    )


def test_storing_a_run_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is listed without a verdict, and the page says what is missing."""
    monkeypatch.setattr(results, "HERE", tmp_path)
    monkeypatch.setattr(storing, "HERE", tmp_path)
    claim = {"name": "few-shot", "form": "small", "claim": "new", "holds": None, "verdict": "too small to judge",
            "seeds": 3, "figures": {"loss": 2.5}, "machine": "2 CPU cores", "seconds": 9, "device": "cpu",
            "cpu_seconds": 7.0}  # fmt: skip
    (tmp_path / "claim.json").write_text(json.dumps(claim))
    with pytest.raises(ValueError, match="say why"):
        storing.store(tmp_path)
    storing.store(tmp_path, "Needs a GPU: too few steps.")
    record = results.read("few-shot")
    (run,) = record["runs"]
    assert (run["verdict"], run["figure"]) == (None, "no verdict, too small to judge: loss 2.5")
    assert results.judged_run(record) is None and record["why"] == "Needs a GPU: too few steps."
    stored = results.load_result("few-shot")
    assert stored is not None and (stored.verdict, stored.figure) == ("not judged yet", record["why"])
    (tmp_path / "claim.json").write_text(json.dumps({**claim, "verdict": "unfinished"}))
    with pytest.raises(ValueError, match="the small form has no verdict .unfinished"):
        storing.store(tmp_path)


def test_a_form_whose_models_learn_too_little_gives_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = experiment("words-and-pictures")
    monkeypatch.setitem(module.FORMS, "full", module.FORMS["tiny"])
    for learned, verdict in ((False, "too small to judge"), (True, "does not hold")):
        monkeypatch.setattr(module, "claim", lambda rows, learned=learned: Verdict(False, {"right": 0.1}, learned))
        outcome = perform("words-and-pictures", "full", tmp_path, device="cpu", jobs=1)
        assert (outcome.holds, outcome.verdict) == (False if learned else None, verdict)
    times = [float(path.read_text()) for path in tmp_path.glob("trials/*/cpu_seconds.txt")]
    assert len(times) == 1 and 0 < outcome.cpu_seconds == times[0]


def test_the_loss_of_guessing(tmp_path: Path) -> None:
    """The entropy of the held-out labels: here, of a and b in equal shares, and of the end."""
    torch.set_num_threads(1)
    (tmp_path / "text.txt").write_text("abab\n" * 40)
    source = TextFiles(path=str(tmp_path / "text.txt"), unit="line")
    run = training_run("guess", writer(16, 1, 2, 10), Data(train=source, valid=source), "cpu", steps=1, batch=4,
                       length=10, lr=1e-3)  # fmt: skip
    trainer = Place(tmp_path, tmp_path, "cpu").train(run)
    a, end = 80 / 200, 40 / 200
    assert guessing_loss(trainer) == pytest.approx(-2 * a * math.log(a) - end * math.log(end), abs=1e-9)
