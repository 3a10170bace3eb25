"""Sinusoids: a smooth form of binary digits, and the rotation that moves every position by the same number of steps."""

from __future__ import annotations

import math
from typing import Any

import torch

from anyformer.look.figures import new
from anyformer.specs.field_types import Positive
from anyformer_course.shown import Shown, Table
from anyformer_course.table import tiny


@torch.no_grad()
def example(positions: int = 16, *, steps: int = 3, width: int = 8, base: Positive = 10000.0) -> Shown:
    """Rotate the sinusoids of `positions` positions by `steps` positions, and compare with the sinusoids there."""
    from anyformer.parts.position.absolute import Binary
    from anyformer.parts.position.absolute import sinusoids as table
    from anyformer.specs.part import Site

    positions, steps = int(positions), int(steps)
    if not 2 <= positions <= 256 or width < 2 or width % 2:
        raise ValueError("positions must be from 2 to 256, and width must be even")
    p = table(positions + abs(steps), width, base, interleaved=True).double()
    frequency = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    rotation = torch.zeros(width, width, dtype=torch.float64)  # one block of 2 x 2 per frequency
    for i, angle in enumerate((steps * frequency).tolist()):
        a = 2 * i
        rotation[a : a + 2, a : a + 2] = torch.tensor(
            [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
        )
    first = max(0, -steps)
    here, there = p[first : first + positions], p[first + steps : first + steps + positions]
    error = float((here @ rotation.T - there).abs().max())
    bits = Binary(bits=8).build(Site(width=8, address="bits"))(torch.arange(positions)[None])[0]
    half_turns = [math.pi / turn for turn in frequency.tolist()]

    def draw() -> Any:
        figure, axes = new(3, 1, 13, 3.6)
        for axis, title, each in zip(axes[0], ("binary digits", "sinusoids", "rotation"), (bits, here, rotation)):
            axis.imshow(each, aspect="auto", cmap="RdBu", interpolation="nearest", vmin=-1, vmax=1)
            axis.set_title(title if title != "rotation" else f"the matrix that moves by {steps}", fontsize=9)
        return figure

    return Shown(
        f"One rotation moves all {positions} positions by {steps}: the largest error is {tiny(error)}.",
        [
            Table("sinusoids", ("position", *map(str, range(width))),
                  [[i, *row] for i, row in enumerate(p[:8].tolist())]),
            Table(f"the matrix that moves by {steps}", ("row", *map(str, range(width))),
                  [[i, *row] for i, row in enumerate(rotation.tolist())]),
            Table("how fast channels change", ("pair or bit", "positions per half turn", "positions per bit flip"),
                  [[i, turn, float(2**i)] for i, turn in enumerate(half_turns)]),
        ],
        draw,
    )  # fmt: skip
