"""An architecture, drawn from its description, with the parameters of every part.

Give one name, or two to see the differences marked.
"""

from __future__ import annotations

from typing import Any

import anyformer as af
from anyformer.drawing.figure import ARROW, PLUS, Box, FigureText, Plus, Polyline
from anyformer.drawing.svg import LIGHT, ORDER, layer
from anyformer.look.figures import plain
from anyformer_course.shown import Shown, Table

POINT = 72 / 100  # points per unit of the drawing; 100 units are an inch


def example(names: str = "transformer-base", *, depth: int = 3) -> Shown:
    """Draw one or two models, and list their parts to `depth` names with their parameters."""
    models = names.split()
    if not 1 <= len(models) <= 2:
        raise ValueError(f"draw takes one or two names, not {len(models)}")
    counts = {name: af.count(af.spec(name)) for name in models}
    tables = {name: count.table(depth) for name, count in counts.items()}
    parts = list(dict.fromkeys(part for table in tables.values() for part in table))
    rows = [[part, *(table.get(part) for table in tables.values())] for part in parts]
    layers = [[name, *row] for name in models for row in layer_steps(af.spec(name))]
    totals = " and ".join(f"{name} has {count.parameters:,}" for name, count in counts.items())
    return Shown(
        f"{totals} parameters in {len(parts)} {'kind' if len(parts) == 1 else 'kinds'} of parts.",
        [
            Table(
                "parameters by part", ("part", *models), [*rows, ["total", *(c.parameters for c in counts.values())]]
            ),
            *([Table("layers", ("model", "stack", "layers", "one layer, in order"), layers)] if layers else []),
        ],
        lambda: figure(af.draw(*models).figure),
    )


def layer_steps(spec: Any) -> list[list[Any]]:
    """Return stack, number of layers and the steps of one layer, if all layers of the stack are equal."""
    from anyformer.parts.mask import Causal
    from anyformer.stacks.block import Block
    from anyformer.stacks.sublayer import Sublayer

    rows = []
    for stack in ("encoder", "decoder"):
        block = getattr(part := getattr(spec, stack, None), "layers", None)
        if not isinstance(block, Block) or not all(isinstance(step, Sublayer) for _, step in block.items()):
            continue
        steps: list[str] = []
        for name, step in block.items():
            masked = "masked " if isinstance(getattr(step.op, "mask", None), Causal) else ""
            order = ((step.pre_norm, "norm"), (True, masked + name), (step.post_norm, "norm"), (True, "add"),
                     (step.out_norm, "norm"))  # fmt: skip
            steps += [word for used, word in order if used]
        rows.append([stack, part.depth, ", ".join(steps)])
    return rows


def figure(drawing: Any) -> Any:
    """Draw the marks of an architecture with matplotlib."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle, FancyBboxPatch

    canvas = Figure(figsize=(drawing.width / 100 + 0.4, drawing.height / 100 + 0.4))
    axis = canvas.add_axes((0, 0, 1, 1))
    axis.set(xlim=(-20, drawing.width + 20), ylim=(drawing.height + 20, -20))
    axis.set_axis_off()
    for mark in sorted(drawing.marks, key=lambda mark: ORDER.index(layer(mark))):
        if isinstance(mark, Box):
            kind = mark.kind.replace(" changed", "")
            fill, _, edge = LIGHT.get(kind, LIGHT.get(kind.split()[0], LIGHT["stack"])).partition(" ")
            if "rgba" in fill:
                fill, edge = "#ffffff99", "#00000033"
            edge, line = (LIGHT["differs"], 1.8) if "changed" in mark.kind else (edge or fill, 0.8)
            style = f"round,pad=0,rounding_size={mark.radius}"
            axis.add_patch(
                FancyBboxPatch((mark.x, mark.y), mark.width, mark.height, boxstyle=style, fc=fill, ec=edge, lw=line)
            )
            for words in mark.words:
                write(axis, words)
        elif isinstance(mark, FigureText):
            write(axis, mark)
        elif isinstance(mark, Plus):
            axis.add_patch(Circle((mark.x, mark.y), PLUS, fc="white", ec=LIGHT["wire"], lw=1.2))
            axis.plot([mark.x - 6, mark.x + 6], [mark.y, mark.y], color=LIGHT["wire"], lw=1.2)
            axis.plot([mark.x, mark.x], [mark.y - 6, mark.y + 6], color=LIGHT["wire"], lw=1.2)
        elif isinstance(mark, Polyline):
            connect(axis, mark)
    return canvas


def write(axis: Any, text: FigureText) -> None:
    """Write the spans of one line, each in its color."""
    from anyformer.drawing.text_width import width

    x = text.bounds[0]
    for span, kind in text.spans:
        color = LIGHT["differs" if "differs" in kind else "faint" if kind in ("note", "shape") else "ink"]
        weight = "bold" if text.bold else "normal"
        words = plain("".join(" " if letter.isspace() else letter for letter in span))
        axis.text(x, text.y, words, fontsize=0.86 * text.size * POINT, color=color, weight=weight, va="baseline")
        x += width(span, text.size, text.bold)


def connect(axis: Any, line: Polyline) -> None:
    """Draw a line, and an arrowhead at its end."""
    color = LIGHT.get(line.kind.split()[0], LIGHT["wire"]).split()[0]
    style = {"tie": ":", "bias": "--", "either": "--", "zoom": ":"}.get(line.kind.split()[0], "-")
    axis.plot(*zip(*line.points, strict=True), color=color, lw=1.2, ls=style, solid_joinstyle="round")
    if line.arrow:
        (px, py), (x, y) = line.points[-2:]
        length = max(abs(x - px), abs(y - py), 1e-6)
        dx, dy = (x - px) / length * ARROW, (y - py) / length * ARROW
        corners = [(x, y), (x - dx - dy / 2, y - dy + dx / 2), (x - dx + dy / 2, y - dy - dx / 2)]
        axis.fill(*zip(*corners, strict=True), color=color)
