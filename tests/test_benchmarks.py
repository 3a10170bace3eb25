"""Scripts import names that exist. benchmarks/history.py: figures are recorded, the page shows them, and a ratio that
fell is noticed."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import json
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

MACHINE = "one GPU"
ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("folder", ["benchmarks", "docs", "examples"])
def test_scripts_import_names_that_exist(folder: str) -> None:
    """Also inside functions, which only run with a GPU, with data or for a long time."""
    for path in (ROOT / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("anyformer"):
                module = importlib.import_module(str(node.module))
                for name in (alias.name for alias in node.names):
                    is_module = hasattr(module, "__path__") and find_spec(f"{node.module}.{name}")
                    assert hasattr(module, name) or is_module, f"{path}: {node.module} has no {name}"


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import history

    monkeypatch.setattr(history, "HISTORY", tmp_path / "history.jsonl")
    monkeypatch.setattr(history, "PAGE", tmp_path / "speed.md")
    monkeypatch.setattr(history, "ROOT", tmp_path)
    return history


def row(history: ModuleType, ratio: float | None = 1.2, low: float = 1.18, name: str = "training: BERT"):
    ours = None if ratio is None else 10.0
    return history.Row(name, "ms", ours, 12.0, "transformers", ratio, low, 1.25, 1.1, "why" if ratio is None else "")


def test_a_comparison_is_the_median_of_alternating_turns(history: ModuleType) -> None:
    found = history.compare("training: BERT", "ms", [0.01, 0.02, 0.01], [0.02, 0.02, 0.03], "timm", 1.1)
    assert (found.ours, found.peer, found.ratio, found.low, found.high) == (10.0, 20.0, 2.0, 1.0, 3.0)


def test_record_appends_one_line(history: ModuleType) -> None:
    for ratio in (1.2, 1.25):
        history.record([row(history, ratio)], MACHINE)
    lines = [json.loads(text) for text in history.HISTORY.read_text().splitlines()]
    assert [line["figures"][0]["ratio"] for line in lines] == [1.2, 1.25]
    assert {"date", "commit", "machine", "torch", "figures"} <= set(lines[0])
    assert history.latest(MACHINE) == {"training: BERT": row(history, 1.25)}
    assert history.latest("another") == {}


def test_a_row_that_was_not_run_keeps_its_older_figures(history: ModuleType) -> None:
    history.record([row(history), row(history, None, name="training: T5")], MACHINE)
    history.record([row(history, None)], MACHINE)
    assert history.latest(MACHINE)["training: BERT"].ratio == 1.2
    assert "| T5 | | **not run** | | | | why |" in history.page().read_text()


def test_the_page_marks_misses_and_falls(history: ModuleType) -> None:
    history.record([row(history), row(history, 1.05, 1.0, "decoding: GPT-2")], MACHINE)
    text = history.page().read_text()
    assert "1 of 2 goals reached, 1 missed" in text
    assert "| BERT | 1.10 | 10 ms | 12 (transformers) | 1.20 | 1.18-1.25 |" in text
    assert "| GPT-2 | 1.10 | 10 ms | 12 (transformers) | 1.05 **missed** | 1.00-1.25 |" in text
    assert "**fell**" not in text.split("## How")[0]
    history.record([row(history, 1.0)], MACHINE)
    assert "1.00 **missed** **fell**" in history.page().read_text()


@pytest.mark.parametrize(("low", "ratio", "fails"), [
    (1.18, 1.15, False), (1.18, 1.13, True), (1.0, 1.05, False), (1.0, 0.99, True), (1.18, 1.5, False),
])  # fmt: skip
def test_a_ratio_may_fall_by_its_spread_and_by_noise(
    history: ModuleType, low: float, ratio: float, fails: bool
) -> None:
    """1.2 may become 1.14 by noise, or what its own spread reached."""
    history.record([row(history, 1.2, low)], MACHINE)
    history.check([row(history, ratio)], "another machine")
    if fails:
        with pytest.raises(SystemExit, match="training: BERT: .*claimed 1.20"):
            history.check([row(history, ratio)], MACHINE)
    else:
        history.check([row(history, ratio)], MACHINE)


def test_a_fall_is_recorded_but_does_not_become_the_claim(history: ModuleType) -> None:
    history.record([row(history)], MACHINE)
    with pytest.raises(SystemExit, match="training: BERT"):
        history.finish([row(history, 1.0)], MACHINE)
    assert history.latest(MACHINE)["training: BERT"].ratio == 1.0
    with pytest.raises(SystemExit, match="claimed 1.20"):
        history.check([row(history, 1.0)], MACHINE)
    history.accept()
    history.check([row(history, 1.0)], MACHINE)


def test_a_run_of_another_machine_is_added(
    history: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = {"rows": [dataclasses.asdict(row(history))], "machine": "H200", "torch": "2.11.0", "commit": "abc"}
    (tmp_path / "run.json").write_text(json.dumps(run))
    monkeypatch.setattr("sys.argv", ["history.py", "--add", str(tmp_path / "run.json")])
    history.main()
    assert "## H200\n\ntorch 2.11.0" in history.PAGE.read_text()
