"""docs/counting.md prints what it says."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest

from anyformer.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "counting.md"
BLOCKS = re.findall(r"```console\n\$ anyformer (.*)\n((?:.*\n)*?)```", PAGE.read_text("utf-8"))


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_commands(command: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == shown


def test_python() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert (failed, tried) == (0, 9) and len(BLOCKS) == 3
