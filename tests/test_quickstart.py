"""The first things a new user runs: the quickstart, and the code in README.md."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer import cli, families, quickstart

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text() if (ROOT / "README.md").is_file() else ""


def test_quickstart_shows_parts_and_runs(capsys: pytest.CaptureFixture[str]) -> None:
    start = time.process_time()
    quickstart.main()
    assert time.process_time() - start < 10  # without the import of torch, which is here already
    out, err = capsys.readouterr()
    spec = af.override(af.spec("gpt2"), quickstart.SMALL)
    assert err == "" and f"{af.count(spec).parameters:,} parameters" in out
    assert re.search(r"^decoder\.layers\.attention\.op +Attention +264,192$", out, re.MULTILINE)
    assert "logits (1, 57, 256)" in out and " ms" in out


def test_quickstart_draws_a_tree_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    quickstart.show_parts(af.override(af.spec("gpt2"), quickstart.SMALL))
    out, _ = capsys.readouterr()
    assert "decoder.layers.attention.op" in out and "└── " in out and "264,192" in out


def test_the_tour_in_the_readme_runs(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tour,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(tour.strip().splitlines()) <= 14  # ten lines, and the imports
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    exec(compile(tour, "README.md", "exec"), scope)
    assert capsys.readouterr().out == "124439808\n"
    ids = torch.tensor([[464, 3280, 318]])
    transformers = pytest.importorskip("transformers")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "tiny-gpt2")
    with torch.no_grad():
        assert torch.allclose(theirs(ids).logits, scope["model"](input_ids=ids).logits, atol=1e-5)  # type: ignore[operator]
    assert af.load(tmp_path / "gated").spec == af.spec(tmp_path / "gated")


def test_the_readme_tells_the_truth(capsys: pytest.CaptureFixture[str]) -> None:
    """The table it prints is what the command prints, and it names every family and every verb."""
    shown = README.partition("$ anyformer count gpt3-175b\n")[2].partition("```")[0]
    assert cli.main(["count", "gpt3-175b"]) == 0
    assert capsys.readouterr().out == shown
    missing = [name for name in families.catalogue() if f"`{name}`" not in README]
    assert not missing, f"families that README.md does not name: {missing}"
    assert all(f"anyformer {verb}" in README for verb in cli.VERBS)


def test_the_code_in_the_design_notes_runs() -> None:
    for code in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "design.md").read_text(), re.DOTALL):
        exec(compile(code, "design.md", "exec"), {"af": af})
