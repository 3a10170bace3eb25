"""`anyformer completion`: its script completes verbs, flags and names in a shell."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from anyformer import cli
from anyformer.cli import verbs


def printed(capsys: pytest.CaptureFixture[str], shell: str) -> str:
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "script").write_text(printed(capsys, "bash"))

    def complete(*words: str) -> list[str]:
        code = f'. {tmp_path}/script; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _anyformer; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", code, "bash", "anyformer", *words], capture_output=True, text=True)
        assert done.stderr == ""
        return done.stdout.split()

    assert complete("") == list(verbs())
    assert complete("ch") == ["check", "chat"]
    assert complete("train", "--re") == ["--resume"] and "shakespeare" in complete("train", "")
    assert complete("fetch", "shake") == ["shakespeare"]
    assert complete("count", "gpt2-x") == ["gpt2-xl"]
    assert complete("run", "fill") == ["fill-mask"] and "--max-new-tokens" in complete("run", "write", "x", "--max")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_every_verb(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = printed(capsys, shell)
    assert all(verb in script for verb in verbs()) and "--resume" in script
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script, text=True, capture_output=True).returncode == 0


def test_it_names_the_nearest_shell() -> None:
    assert cli.main(["completion", "bsh"]) == 2  # one line, as every mistake
