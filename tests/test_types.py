"""What editors and type checkers know of the package: tests/typing has a user's script, and a file of mistakes.

`make types` checks both files as well, with the package's own sources. Here mypy sees an installed package.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import site
import subprocess
import sys
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import anyformer as af
import vocabularies
from anyformer.models import TransformerModule
from anyformer.models.base import NAMED
from anyformer.specs.part import Part

jedi = pytest.importorskip("jedi")

SCRIPT, MISTAKES = (Path(__file__).parent / "typing" / name for name in ("user_script.py", "wrong_names.py"))
SOURCES = Path(af.__file__).parents[1]
MISTAKE = re.compile(r"  # type: ignore\[([a-z-]+)\]  # (\w+)$")  # mypy's code, and the name that the error contains


def mistakes() -> dict[int, tuple[str, str]]:
    """Return line number -> (mypy's code, name) of the mistakes."""
    lines = enumerate(MISTAKES.read_text().splitlines(), 1)
    return {number: (found[1], found[2]) for number, line in lines if (found := MISTAKE.search(line))}


# -- mypy -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # a minute of CPU time, most of it to read the types of torch
def test_mypy_knows_all_types_and_finds_all_mistakes(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / SCRIPT.name).write_text(SCRIPT.read_text())
    lines = [MISTAKE.sub("", line) for line in MISTAKES.read_text().splitlines()]
    (tmp_path / MISTAKES.name).write_text("\n".join(lines))

    def errors(file: Path, *options: str) -> list[str]:
        command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "cache", *options, file.name]
        environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
        output = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
        return [line for line in output.splitlines() if ": error: " in line]

    assert errors(SCRIPT, "--disallow-any-expr") == []
    found = errors(MISTAKES)
    assert {int(line.split(":")[1]) for line in found} == mistakes().keys()
    for number, (code, name) in mistakes().items():
        messages = [line for line in found if line.startswith(f"{MISTAKES.name}:{number}:")]
        assert any(f"[{code}]" in message for message in messages), messages
        assert any(re.search(rf'"{name}"', message) for message in messages), messages


# -- the same files at run time ---------------------------------------------------------------------------------------


def load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("vocabulary", "model"):
        (tmp_path / name).mkdir()
    load(SCRIPT).main(vocabularies.gpt2(tmp_path / "vocabulary"), tmp_path / "model")
    assert (tmp_path / "model" / "classifier" / "spec.json").is_file()
    assert len(capsys.readouterr().out.splitlines()) == 8


def test_python_names_the_nearest_valid_name_too() -> None:
    namespace: dict[str, Any] = {}
    for statement in ast.parse(MISTAKES.read_text()).body:
        code = compile(ast.Module([statement], []), MISTAKES.name, "exec")
        if statement.lineno not in mistakes():
            exec(code, namespace)
            continue
        _, name = mistakes()[statement.lineno]
        with pytest.raises((ValueError, AttributeError), match=rf"\b{name}\b") as raised:
            exec(code, namespace)
        assert "\n" not in str(raised.value)


# -- an editor --------------------------------------------------------------------------------------------------------


def completions(code: str, tmp_path: Path) -> set[str]:
    """Return what a language server suggests at the end of the code."""
    project = jedi.Project(tmp_path, sys_path=[str(SOURCES), *site.getsitepackages()])
    environment = jedi.InterpreterEnvironment()
    script = jedi.Script(f"import anyformer as af\n{code}", project=project, environment=environment)
    return {each.name.rstrip("=") for each in script.complete()}


@pytest.mark.parametrize("kind", [af.parts.GatedMLP, af.parts.Attention, af.parts.Sublayer, af.lora.LoRA])
def test_an_editor_completes_the_fields_of_parts(tmp_path: Path, kind: type[Part]) -> None:
    home = "lora" if kind is af.lora.LoRA else "parts"
    fields = kind.field_types().keys()
    assert fields <= completions(f"af.{home}.{kind.__name__}(", tmp_path)
    assert fields <= completions(f"from {kind.__module__} import {kind.__name__}\n{kind.__name__}(", tmp_path)
    part = completions(f"part: af.{home}.{kind.__name__}\npart.", tmp_path)
    assert {*fields, "replace"} <= part


@pytest.mark.parametrize(("home", "module"), [("af", af), ("af.tasks", af.tasks), ("af.look", af.look)])
def test_an_editor_completes_public_names(tmp_path: Path, home: str, module: Any) -> None:
    assert {*module._PUBLIC} <= {*module.__all__}
    assert {*module._PUBLIC} <= completions(f"{home}.", tmp_path)


def test_an_editor_completes_parts_and_outputs(tmp_path: Path) -> None:
    assert {"GatedMLP", "GatedFusion"} & completions("af.parts.Gat", tmp_path) == {"GatedMLP"}
    assert completions("af.load('folder')(input_ids=ids).lo", tmp_path) >= {"logits", "loss"}


def test_the_inputs_in_the_signature_are_those_that_type_checkers_see() -> None:
    call = typing.get_overloads(TransformerModule.__call__)[-1]
    named = [each.name for each in inspect.signature(call).parameters.values() if each.kind is each.KEYWORD_ONLY]
    assert tuple(named) == NAMED
