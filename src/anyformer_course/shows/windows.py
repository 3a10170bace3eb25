"""Shifted windows: patches attend inside small windows, which move by half a window in every second layer.

The pairs of attention grow with the number of patches instead of its square, and the shift connects neighbouring
windows (Swin) [Liu et al. 2021].
"""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer.look import figures
from anyformer_course.shown import Shown, Table


def example(name: str = "swin-tiny", *, size: int = 224) -> Shown:
    """Compute the windows of every stage of a named model for a picture of `size` x `size` pixels."""
    if not 32 <= size <= 1024:
        raise ValueError(f"size is {size}; it must be from 32 to 1024")
    found = af.look.windows(af.spec(name), (size, size))
    rows = []
    for each in found:
        patches = each.window.numel()
        keys = each.window.flatten() * (int(each.part.max()) + 1) + each.part.flatten()
        pairs = int((keys.bincount() ** 2).sum())
        grid = f"{each.window.shape[0]} x {each.window.shape[1]}"
        rows.append([each.about, grid, each.size, each.shift, pairs, patches**2, patches**2 / pairs])
    plain, *rest = found
    shifted = next((each for each in rest if each.shift), plain)
    reached = [
        [number, reach(plain, [plain] * number), reach(plain, [plain, shifted] * number, number)]
        for number in (1, 2, 4, 6)
    ]

    def draw() -> Any:
        figure, axes = figures.new(2, 1, 8, 4.2)
        for axis, each in zip(axes[0], (plain, shifted), strict=True):
            axis.imshow(
                ((each.window * 7 + each.part * 3) % 20).numpy(), cmap="tab20", interpolation="nearest", vmin=0, vmax=19
            )
            axis.set_title(f"{each.about}: shift {each.shift}", fontsize=9)
            for window, _, (row, column) in each.pieces() if each.window.max() < 100 else ():  # more do not fit
                axis.text(
                    column / each.span.width - 0.5, row / each.span.height - 0.5, str(window), fontsize=7, ha="center"
                )
            axis.set_axis_off()
        figure.suptitle(
            "patches of the same color attend to each other; equal numbers are one joined window", fontsize=9
        )
        return figure

    return Shown(
        f"In the first layer a patch attends to {plain.size**2} patches instead of {plain.window.numel():,}: "
        f"{rows[0][-1]:.0f} times fewer pairs. After {reached[1][0]} layers it depends on {reached[1][2]} patches with "
        f"shifted windows, and on {reached[1][1]} without the shift.",
        [
            Table(
                f"{name}, picture of {size} x {size}",
                ("layers", "grid", "window", "shift", "pairs in windows", "all pairs", "times fewer"),
                rows,
            ),
            Table(
                "patches on which the patch in the middle depends, layers of the first stage",
                ("layers", "same windows", "every second layer shifted"), reached,
            ),
        ],
        draw,
    )  # fmt: skip


def reach(first: Any, layers: list[Any], number: int | None = None) -> int:
    """Return on how many patches the patch in the middle depends after the first `number` of the layers."""
    rows, columns = first.window.shape
    seen = torch.zeros(rows, columns, dtype=torch.bool)
    seen[rows // 2, columns // 2] = True
    for each in layers[:number][::-1]:
        keys = each.window * (int(each.part.max()) + 1) + each.part  # patches with equal keys attend to each other
        seen = torch.isin(keys, keys[seen])
    return int(seen.sum())
