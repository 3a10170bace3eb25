"""Triton programs are called with the right arguments: checked in their source, since most machines lack Triton."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import anyformer.kernels
from anyformer.kernels import few_rows

FOLDER = Path(anyformer.kernels.__file__).parent
FILES = sorted(FOLDER.glob("*_triton.py"))


def functions(path: Path) -> dict[str, inspect.Signature]:
    """Return the signatures of all functions that a file defines or imports from neighbouring files."""
    found: dict[str, inspect.Signature] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("anyformer.kernels."):
            there = functions(FOLDER / f"{node.module.rpartition('.')[2]}.py")
            found |= {name.asname or name.name: there[name.name] for name in node.names if name.name in there}
        if isinstance(node, ast.FunctionDef):
            given = node.args.args
            first_default = len(given) - len(node.args.defaults)
            found[node.name] = inspect.Signature(
                [
                    inspect.Parameter(
                        each.arg,
                        inspect.Parameter.POSITIONAL_OR_KEYWORD,
                        default=inspect.Parameter.empty if i < first_default else None,
                    )
                    for i, each in enumerate(given)
                ]
            )
    return found


def wrong_calls(path: Path) -> list[str]:
    known, wrong = functions(path), []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
            try:
                known[node.func.id].bind(*node.args, **{str(each.arg): each.value for each in node.keywords})
            except TypeError as error:
                wrong.append(f"{path.name}:{node.lineno}: {node.func.id}: {error}")
    return wrong


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_programs_call_each_other_with_the_arguments_they_take(path: Path) -> None:
    assert functions(path)
    assert wrong_calls(path) == []


@pytest.mark.parametrize("K", [8, 64, 5000])
@pytest.mark.parametrize("gated", [False, True])
def test_tiles_are_powers_of_two_and_not_too_small_for_tensor_cores(gated: bool, K: int) -> None:
    tile = few_rows.some_rows_shape(5, K, gated, 10**5)[:3]
    shapes = [few_rows.one_row_shape(K, N, gated, of_bytes) for N in (64, 4096, 50000) for of_bytes in (False, True)]
    assert min(tile) >= 16 and all(size.bit_count() == 1 for shape in (tile, *shapes) for size in shape)


def test_a_missing_argument_is_seen(tmp_path: Path) -> None:
    (tmp_path / "new_triton.py").write_text(
        "from anyformer.kernels.few_rows_triton import product\n\ndef program(x):\n    return product(x, x)\n"
    )
    (wrong,) = wrong_calls(tmp_path / "new_triton.py")
    assert "new_triton.py:4: product: missing a required argument" in wrong
