"""Stages: the grid and the width of the vectors after every part of a picture model, from the first layer to the last.

A ResNet or a Swin makes the grid coarser and the vectors wider; a ViT keeps both. The shapes are from a real pass
(computed without weights).
"""

from __future__ import annotations

import math
from typing import Any

import torch

import anyformer as af
from anyformer.kernels.capture import graph_capture
from anyformer.look.figures import new
from anyformer.models.call import Call
from anyformer.models.construct import skeleton
from anyformer.parts.computed import compute
from anyformer_course.shown import Shown, Table


def example(names: str = "resnet-50 vit-b16 swin-tiny", *, size: int = 224) -> Shown:
    """Record the shapes of the named models (separated by spaces) for a picture of `size` x `size` pixels."""
    if not names.split() or len(names.split()) > 4:
        raise ValueError("give one to four names of picture models, such as 'resnet-50 swin-tiny'")
    if size % 32 or not 64 <= size <= 1024:
        raise ValueError(f"size is {size}; it must be a multiple of 32 from 64 to 1024")
    rows = []
    for name in names.split():
        for stage, (width, side, blocks) in enumerate(stages(name, size), 1):
            rows.append([name, stage, blocks, f"{width} x {side} x {side}", width, side * side, width * side * side])

    def draw() -> Any:
        from matplotlib.patches import Rectangle

        models = names.split()
        figure, axes = new(len(models), 1, 3.4 * len(models), 3.4, sharey=True)
        for axis, name in zip(axes[0], models, strict=True):
            x = 0.0
            for _, stage, blocks, shape, width, tokens, _ in [row for row in rows if row[0] == name]:
                thick, high = width / 700, math.sqrt(tokens)
                axis.add_patch(Rectangle((x, -high / 2), thick, high, fc=f"C{stage - 1}", ec="black", lw=0.8))
                axis.text(x, high / 2 + 1, f"{blocks} x\n{shape}", fontsize=8, va="bottom", rotation=30)
                x += thick + 0.8
            axis.set(xlim=(-0.3, max(x, 5)), ylim=(-35 * size / 224, 55 * size / 224), title=name)
            axis.set_xticks([])
            axis.set_yticks([])
        axes[0, 0].set_ylabel("height: side of the grid")
        axes[0, 0].set_xlabel("width: numbers per vector", loc="left")
        return figure

    first, last = ([row for row in rows if row[0] == names.split()[0]][i] for i in (0, -1))
    if first is last:
        says = f"All {first[2]} blocks of {first[0]} have the shape {first[3]}."
    else:
        says = (
            f"{first[0]} goes from {first[3]} to {last[3]}: {first[5] / last[5]:.0f} times fewer places, "
            f"{last[4] / first[4]:.0f} times wider."
        )
    return Shown(
        says,
        [Table(f"channels x rows x columns, for a picture of {size} x {size}",
               ("model", "stage", "blocks", "shape", "width", "places", "numbers"), rows)],
        draw,
    )  # fmt: skip


def stages(name: str, size: int) -> list[tuple[int, int, int]]:
    """Return (width, side of the grid, number of blocks) of each stretch of blocks with equal shapes."""
    spec = af.spec(name)
    embedding: Any = spec.embedding  # type: ignore[attr-defined]
    if "pixel_values" not in embedding.inputs:
        raise ValueError(f"{name} does not read pictures; see `anyformer zoo`")
    model, shapes = skeleton(spec).eval(), []
    compute(model)

    def record(module: Any, inputs: Any, output: Any) -> None:
        x = output[0] if isinstance(output, tuple) else output
        shapes.append((x.shape[-1], math.isqrt(x.shape[1])))  # a class token does not change the square root

    for module in model.modules():
        if type(module).__name__ in ("BlockModule", "ResidualDownModule"):
            module.register_forward_hook(record)
    with torch.no_grad(), torch.device("meta"), graph_capture():
        model(Call({"pixel_values": torch.empty(1, 3, size, size)}, None, kernel=model.kernel))
    found: list[tuple[int, int, int]] = []
    for width, side in shapes:
        if found and found[-1][:2] == (width, side):
            found[-1] = (width, side, found[-1][2] + 1)
        else:
            found.append((width, side, 1))
    return found
