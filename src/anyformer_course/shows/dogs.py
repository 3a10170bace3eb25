"""Two equal words: without positions attention gives both the same result, with positions it does not.

Attention treats its input as a set: if the words change places, the results change places with them. A vector per
position breaks the tie.
"""

from __future__ import annotations

import math
from typing import Any

import torch

import anyformer as af
from anyformer.look import figures
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._small import context, module
from anyformer_course.words import vectors

ADDED = {
    "none": None,
    "sinusoidal": lambda: af.parts.Sinusoidal(length=64),
    "learned": lambda: af.parts.Learned(length=64),
}
IN_SCORES = {"rope": lambda: af.parts.Rope(), "alibi": lambda: af.parts.Alibi(num_heads=2)}


def example(
    text: str = "my dog and your dog", *, position: str = "sinusoidal", width: int = 16, seed: int = 0
) -> Shown:
    """Compare the results of a repeated word without positions and with `position`, and after a shuffle."""
    words, x = vectors(text, width, seed)
    repeated = [word for i, word in enumerate(words) if word in words[:i]]
    if not repeated:
        raise ValueError(f"no word occurs twice in {text!r}; write a text such as 'my dog and your dog'")
    if position not in {*ADDED, *IN_SCORES}:
        raise ValueError(f"position is {position!r}; choose one of {', '.join([*ADDED, *IN_SCORES])}")
    first = words.index(repeated[0])
    second = words.index(repeated[0], first + 1)
    order = torch.randperm(len(words), generator=torch.Generator().manual_seed(seed + 1))
    rows, results = [], {}
    for name in dict.fromkeys(("none", position)):
        mixed, shuffled = attend(x, name, seed), attend(x[order], name, seed)
        results[name] = mixed
        apart = float((mixed[first] - mixed[second]).norm())
        moved = float((mixed[order] - shuffled).norm())
        rows.append([name, apart, apart < 1e-5, moved, moved < 1e-5])

    def draw() -> Any:
        apart = [torch.cdist(mixed, mixed) for mixed in results.values()]
        titles = [f"positions: {name}" for name in results]
        return figures.heat_maps(apart, titles, "distance of the results of two words (dark: equal)", words)

    same, other = rows[0][1], rows[-1][1]
    return Shown(
        f"Without positions the two {repeated[0]!r} differ by {same:.2g}, with {position} positions by {other:.2f}.",
        [
            Table(
                f"{repeated[0]!r} at positions {first} and {second}",
                ("positions", "difference of the two results", "equal", "change if the text is shuffled", "only moves"),
                rows,
            )
        ],
        draw,
    )


def attend(x: torch.Tensor, position: str, seed: int) -> torch.Tensor:
    """Return the results (T, D) of one layer of attention with this kind of position."""
    T, width = x.shape
    if make := ADDED.get(position):
        x = x + module(make(), width, seed, std=1.0)(torch.arange(T)[None])[0]
    inside = IN_SCORES[position]() if position in IN_SCORES else None
    op = af.parts.Attention(num_heads=2, position=inside)
    with torch.no_grad():
        return module(op, width, seed, std=1 / math.sqrt(width))(x[None], context(T))[0]
