"""The course adds experiments, pictures and data to `anyformer`, as an installed package or on the path only."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from anyformer import cli
from anyformer.lab.registry import experiments
from anyformer.look.picture import pictures
from anyformer.recipes.shared.sources import origin_of
from anyformer.specs import extensions
from anyformer_course.extension import EXTENSIONS

REPO = Path(__file__).parents[2]


def test_entry_points_are_those_of_a_checkout() -> None:
    declared = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["entry-points"]
    ours = {group.removeprefix("anyformer."): points for group, points in declared.items() if "anyformer." in group}
    assert ours == EXTENSIONS


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout on the path that is not installed."""
    monkeypatch.setattr(extensions, "_registered", {})
    monkeypatch.setattr(extensions, "_installed", lambda group: ())


def test_an_installed_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "_registered", {})
    folder = tmp_path / "others-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[anyformer.experiments]\nmine = others.experiments\n[anyformer.pictures]\nmine = others:PICTURES\n"
        "[anyformer.data]\nmine = others:ORIGINS\n"
    )
    (tmp_path / "others" / "experiments").mkdir(parents=True)
    (tmp_path / "others" / "__init__.py").write_text(
        "from types import SimpleNamespace\nPICTURES = {'mine': SimpleNamespace(about='a picture')}\n"
        "ORIGINS = {'mine': SimpleNamespace(about='numbers')}\n"
    )
    (tmp_path / "others" / "experiments" / "__init__.py").touch()
    (tmp_path / "others" / "experiments" / "my_claim.py").write_text('"""Mine: it holds.\n\nMore."""\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    extensions._installed.cache_clear()
    try:
        assert experiments()["my-claim"] == "Mine: it holds."
        assert pictures()["mine"].about == "a picture" and origin_of("mine").about == "numbers"
    finally:
        extensions._installed.cache_clear()


@pytest.mark.parametrize("command, line", [
    (("lab", "run", "few-shot"), "no experiments: none are installed: run `pip install -e .`"),
    (("look", "--list"), "no pictures: none are installed: run `pip install -e .`"),
    (("fetch", "shapes"), "generated data: none are installed: run `pip install -e .`"),
], ids=lambda value: value[0])  # fmt: skip
def test_nothing_is_installed(
    command: tuple[str, ...], line: str, nothing: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    more = ["--data", str(tmp_path)] if command[0] == "fetch" else []
    assert cli.main([*command, *more]) == 2
    err = capsys.readouterr().err
    assert line in err and err.count("\n") == 1


def test_a_checkout_on_the_path(tmp_path: Path) -> None:
    """`python -m anyformer_course` is the command; listing experiments and pictures does not import torch."""
    program = (
        "import runpy, sys; sys.modules['torch'] = None; runpy.run_module('anyformer_course', run_name='__main__')"
    )
    for command, line in ((("lab", "list"), "induction-heads"), (("look", "--list"), "spectrogram")):
        done = subprocess.run(
            [sys.executable, "-c", program, *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPO / "src")},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0 and line in done.stdout, done.stderr
