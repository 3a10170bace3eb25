"""Word order: without positions attention reads a bag of words; with positions, added or concatenated, it does not.

The last word attends to all words of a text, and again after the words before it changed places.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table
from anyformer_course.words import label_rows, vectors

KINDS = ("none", "add", "concatenate")


@torch.no_grad()
def example(text: str = "John likes Mary not Bill", *, position: str = "add", width: int = 8, seed: int = 0) -> Shown:
    """Show x, p and their combination by `position` ("none", "add" or "concatenate"), and what the order changes."""
    words, x = vectors(text, width, seed)
    if position not in KINDS:
        raise ValueError(f"position is {position!r}; use one of {', '.join(KINDS)}")
    if len(words) < 3:
        raise ValueError("write at least three words, so that two can change places before the last one")
    p = sinusoids(len(words), width)
    order = [*reversed(range(len(words) - 1)), len(words) - 1]
    changes = {}
    for kind in KINDS:
        results = [last_result(x[index], p, kind, seed) for index in (range(len(words)), order)]
        changes[kind] = float((results[0] - results[1]).norm() / results[0].norm())
    combined = combine(x, p, position, seed)

    def draw() -> Any:
        figure, axes = new(4, 1, 14, 3.2)
        for axis, (title, each) in zip(axes[0], {"x: words": x, "p: positions": p, position: combined}.items()):
            axis.imshow(each, aspect="auto", cmap="RdBu", vmin=-3, vmax=3)
            axis.set_title(title, fontsize=9)
            axis.set_yticks(range(len(words)), words, fontsize=7)
        axes[0, 3].bar(changes.keys(), changes.values())
        axes[0, 3].set_title("change if the order changes", fontsize=9)
        return figure

    names = tuple(map(str, range(width)))
    return Shown(
        f"If the words before {words[-1]!r} are read backwards, its result changes by {changes['none']:.0%} without "
        f"positions, {changes['add']:.0%} with added and {changes['concatenate']:.0%} with concatenated positions.",
        [
            Table("x: words", ("word", *names), label_rows(words, x)),
            Table("p: positions", ("word", *names), label_rows(words, p)),
            Table(f"input of attention: {position}", ("word", *names), label_rows(words, combined)),
            Table("change of the last word's result", ("position", "relative change"), [*map(list, changes.items())]),
        ],
        draw,
    )  # fmt: skip


def sinusoids(length: int, width: int) -> Tensor:
    from anyformer.parts.position.absolute import Sinusoidal
    from anyformer.specs.part import Site

    part = Sinusoidal(length=length, interleaved=True)
    return part.build(Site(width=width, address="position"))(torch.arange(length)[None])[0]


def combine(x: Tensor, p: Tensor, kind: str, seed: int) -> Tensor:
    """Return x, x + p, or W [x; p] with random W: concatenated positions are projected to the width of the model."""
    if kind == "concatenate":
        draws = torch.Generator().manual_seed(seed + 1)
        both = torch.cat((x, p), 1)
        return both @ torch.randn(both.shape[1], x.shape[1], generator=draws) / math.sqrt(x.shape[1])
    return x + p if kind == "add" else x


def last_result(x: Tensor, p: Tensor, kind: str, seed: int) -> Tensor:
    draws, width = torch.Generator().manual_seed(seed), x.shape[1]
    q, k, v = (combine(x, p, kind, seed) @ torch.randn(width, width, generator=draws) / math.sqrt(width) for _ in "qkv")
    return (q[-1] @ k.T / math.sqrt(width)).softmax(-1) @ v
