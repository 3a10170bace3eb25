"""docs/lectures.md: every command runs in a small form; results equal the command's output or quote the linked page."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path
from typing import Any

import pytest

from anyformer.cli.listing import read_rows
from anyformer.lab.registry import experiments
from pages import SMALLER
from test_docs import GIVEN, ROOT


def page_module() -> Any:
    module = importlib.util.spec_from_file_location("lectures", ROOT / "docs" / "lectures.py")
    assert module is not None and module.loader is not None
    found = importlib.util.module_from_spec(module)
    module.loader.exec_module(found)
    return found


lectures = page_module()
ROWS = list(lectures.rows(lectures.PAGE.read_text("utf-8")))
COMMANDS = {row.command: None for row in ROWS if row.command}
TABLE = [command for command in COMMANDS if command.startswith("python ")]
LAB = ["--form", "tiny", "--jobs", "1", "--device", "cpu"]
HERE = ("--text", "--csv", "--tags")  # trainings that need no downloaded data


def smaller(command: str) -> list[str]:
    """Options that make a command small. Trainings that need data sets only run with --show here;
    tests/train/test_recipes.py runs them."""
    words = shlex.split(command) if command.startswith("anyformer ") else ["", ""]
    if {"--help", "--show"} & {*words}:
        return []
    if words[1] == "lab":
        return LAB
    if words[1] == "train" and words[2] not in HERE:
        return ["--show"]
    return SMALLER.get(words[1], [])


def marks(command: str) -> Any:
    """Mark experiments as slow (tests/course/test_lab.py runs them), and Narang's table and all but every tenth row of
    it (tests/course/test_narang_table.py checks their counts)."""
    table_row = command in TABLE and TABLE.index(command) % 10 != 5
    slow = table_row or command.startswith(("anyformer lab run", "anyformer scale"))
    return pytest.param(command, marks=pytest.mark.slow) if slow else command


@pytest.mark.parametrize("command", [*map(marks, COMMANDS)])
def test_every_command_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if "--picture" in command or ".html" in command:
        pytest.importorskip("matplotlib")
    for name, write in GIVEN.items():
        if name in command:
            write(Path(name))
    if "runs/books" in command:
        lectures.run("anyformer train --text books", *SMALLER["train"])
    rows = [row for row in ROWS if row.command == command]
    results = [lectures.result(row) for row in rows]
    assert [result or row.result for row, result in zip(rows, results, strict=True)] == [row.result for row in rows], (
        "run python docs/lectures.py to update the results"
    )
    if None in results or command.startswith("anyformer lab"):  # it has not run yet
        lectures.run(command, *smaller(command))


@pytest.mark.parametrize("row", ROWS, ids=[f"{i}-{row.what[:40]}" for i, row in enumerate(ROWS)])
def test_every_row_has_a_result(row: Any) -> None:
    assert row.what and row.result
    if not row.command:
        assert row.result.startswith("Impossible here: "), "a row without a command must give the reason"
    if "(results/" in row.result:
        assert lectures.is_quoted(row.result), "the linked page does not contain this quotation"


def test_the_page_has_what_there_is() -> None:
    """The page contains every experiment and every family of the zoo."""
    assert len(ROWS) > 250
    assert {name for name in experiments() if f"anyformer lab run {name}" not in COMMANDS} == set()
    named = {word for command in COMMANDS for word in command.replace('"', " ").split()}
    families = {row["family"]: False for row in read_rows()}
    families |= {row["family"]: True for row in read_rows() if row["name"] in named}
    assert {name for name, there in families.items() if not there} == LATER


# families that the lectures do not mention
LATER = {"dinov2", "dinov2_with_registers", "gemma2", "gpt_oss", "modernbert", "olmo2", "qwen3", "qwen3_moe", "siglip"}


def test_a_page_that_is_wrong() -> None:
    row = lectures.Row("x", "", "anyformer count gpt5", "")
    with pytest.raises(AssertionError, match="ended with 2"):
        lectures.result(row)
    assert lectures.result(row._replace(command="anyformer count gpt2", result="125M")) == "124M (124M)"
    assert not lectures.is_quoted("holds: 100 % ([lab](results/lab.md))")
    assert lectures.is_quoted("eleven shots add ... at widths 8, 16 ([lab](results/lab.md))")
