"""Every weight rule on square matrices, whose shapes cannot reveal a wrong transpose or concatenation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.weights.rules import (
    Alternate,
    Concat,
    Copies,
    Heads,
    Interleave,
    Rename,
    Repeat,
    Reshape,
    Rule,
    Split,
    Stack,
    Transpose,
    Unwritten,
    plan,
)

N = 4
M = torch.arange(N * N).view(N, N)  # M[i, j] = 4 i + j
A, B = M[:2], M[2:]  # (2, 4)
L, R = M[:, :2], M[:, 2:]  # (4, 2)
SQUARES = [M + 100 * n for n in range(4)]


def turned(x: Tensor) -> list[list[int]]:
    return [[int(x[j, i]) for j in range(x.shape[0])] for i in range(x.shape[1])]


# name -> (rule, published tensors, ours), both written out
RULES: dict[str, tuple[Rule, list[Tensor], list[Any]]] = {
    "rename": (Rename("a", "x"), [M], [M.tolist()]),
    "unwritten": (Unwritten("a", "x"), [M], [M.tolist()]),
    "copies": (Copies(["a", "b"], "x"), [M], [M.tolist()]),
    "transpose": (Transpose("a", "x"), [M], [turned(M)]),
    "reshape": (Reshape("a", "x", (2, 2, -1)), [M.view(2, 2, N)], [M.tolist()]),
    "reshape to a column": (Reshape("a", "x", (-1, 1)), [M.view(16, 1)], [M.tolist()]),
    "heads": (Heads("a", "x", (2, 2)), [M.view(N, 2, 2)], [turned(M)]),
    "split": (Split("a", ["x", "y"]), [M], [A.tolist(), B.tolist()]),
    "split across": (Split("a", ["x", "y"], dim=1), [M], [L.tolist(), R.tolist()]),
    "split turned": (Split("a", ["x", "y"], transpose=True), [M], [turned(L), turned(R)]),
    "split across, turned": (Split("a", ["x", "y"], dim=1, transpose=True), [M], [turned(A), turned(B)]),
    # two heads, each with one row of x and one row of y
    "interleave": (Interleave("a", ["x", "y"], groups=2), [M], [[[0, 1, 2, 3], [8, 9, 10, 11]],
                                                                 [[4, 5, 6, 7], [12, 13, 14, 15]]]),
    "interleave, one group": (Interleave("a", ["x", "y"], groups=1), [M], [A.tolist(), B.tolist()]),
    "alternate": (Alternate("a", "x"), [M], [[[4 * i, 4 * i + 2, 4 * i + 1, 4 * i + 3] for i in range(N)]]),
    "concat": (Concat(["a", "b"], "x", [2, 2]), [A, B], [M.tolist()]),
    "concat across": (Concat(["a", "b"], "x", [2, 2], dim=1), [L, R], [M.tolist()]),
    "concat, unequal": (Concat(["a", "b"], "x", [1, 3]), [M[:1], M[1:]], [M.tolist()]),
    "stack": (Stack("a.{e}", "x", 2), SQUARES[:2], [[M.tolist(), (M + 100).tolist()]]),
    "stack turned": (Stack("a.{e}", "x", 2, transpose=True), SQUARES[:2], [[turned(M), turned(M + 100)]]),
    # gate and up of each expert are concatenated
    "stack of pairs": (Stack(["a.{e}", "b.{e}"], "x", 2), SQUARES,
                       [[[*M.tolist(), *(M + 100).tolist()], [*(M + 200).tolist(), *(M + 300).tolist()]]]),
    "stack of pairs, turned": (Stack(["a.{e}", "b.{e}"], "x", 2, transpose=True), SQUARES,
                               [[[a + b for a, b in zip(turned(M + low), turned(M + low + 100))] for low in (0, 200)]]),
    "repeat": (Repeat("a", ["x", "y"]), [M], [M.tolist(), M.tolist()]),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_a_rule_puts_every_number_in_its_place_and_back(name: str) -> None:
    rule, published, ours = RULES[name]
    shapes = [torch.tensor(one).shape for one in ours]
    found = rule.load(published, shapes)
    assert [tensor.tolist() for tensor in found] == ours
    assert not any(rule.misfits(published, shapes))
    back = rule.save([torch.tensor(one) for one in ours])
    assert [tensor.tolist() for tensor in back] == [tensor.tolist() for tensor in published]
    assert rule.written is (name != "unwritten") and rule.needed == len(published)
    if name == "repeat":
        assert found[0].data_ptr() != found[1].data_ptr(), "copies must not share memory"


def test_shapes_are_found_without_numbers() -> None:
    """Shapes are the same on meta, where `join` does not use torch.cat."""
    for rule, published, ours in RULES.values():
        empty = [torch.empty(torch.tensor(one).shape, device="meta") for one in ours]
        assert [tensor.shape for tensor in rule.save(empty)] == [tensor.shape for tensor in published]
        first, *others = rule.misfits([published[0][:0], *published[1:]], [tensor.shape for tensor in empty])
        assert first.endswith(f"the model needs {tuple(published[0].shape)}") and not any(others)


def test_names_are_bound_as_they_stand() -> None:
    rules = [
        Stack("~h.{i}.e.{e}.w", "layers.{i}.w", 2), Rename("~h.{i}.{p}.w", "layers.{i}.{p}.w"), Rename("x.*", "y.*"),
        Split("~h.{i}.qk", ["layers.{i}.q", "layers.{i}.k"]), Rename("same.{i}.{i}", "twice.{i}.{i}"),
    ]  # fmt: skip
    wanted = ["layers.3.w", "layers.3.a.w", "layers.3.k", "layers.3.q", "layers.4.q", "twice.1.1", "twice.1.2", "none"]
    steps, orphans = plan(rules, wanted, "base.")
    assert [(step.sources, step.targets) for step in steps] == [
        (["base.h.3.e.0.w", "base.h.3.e.1.w"], ["layers.3.w"]), (["base.h.3.a.w"], ["layers.3.a.w"]),
        (["base.h.3.qk"], ["layers.3.q", "layers.3.k"]), (["same.1.1"], ["twice.1.1"]),
    ]  # fmt: skip
    assert orphans == ["layers.4.q", "twice.1.2", "none"]  # a split needs all its targets
    assert Stack(["a.{e}", "b.{e}"], "x", 2).sources == ("a.0", "b.0", "a.1", "b.1")
    assert Copies(["a", "b"], "x").needed == 1 and Rule(["a", "b"], ["x"]).needed == 2
