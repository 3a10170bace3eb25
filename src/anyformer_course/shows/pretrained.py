"""Pretrained models: layers, width, heads, parameters (published and counted), training tokens and compute.

`anyformer zoo` lists the names. Published figures have their source; 6 N D is the usual estimate of the training
compute, with our count of the parameters that a token uses.
"""

from __future__ import annotations

from typing import Any

import anyformer as af
from anyformer.look.figures import new
from anyformer.parts.base import HasHeads
from anyformer.parts.feedforward.mlp import MLP, GatedMLP
from anyformer.specs.part import walk
from anyformer_course.pictures.points import name_points
from anyformer_course.pictures.published_figures import published_models
from anyformer_course.shown import Shown, Table

KINDS = {"encoder": "o", "decoder": "s", "encoder-decoder": "^"}
TABLES = {  # titles; columns, and their index in a row
    "shapes": (
        ("model", 0), ("date", 1), ("kind", 2), ("layers", 3), ("width", 4), ("feed-forward", 12), ("heads", 10),
    ),
    "parameters N and compute, published and counted": (
        ("model", 0), ("published N", 5), ("our count", 6), ("used by a token", 9), ("FLOPs", 7), ("6 N D", 8),
        ("tokens D", 11),
    ),
}  # fmt: skip


def example(names: str = "gpt1 bert-base bert-large gpt2-xl t5-11b gpt3-175b") -> Shown:
    """Table the named models (separated by spaces), oldest first."""
    known = {model.zoo: model for model in published_models() if model.zoo}
    chosen = names.split()
    if not chosen:
        raise ValueError("give one or more names, such as 'gpt1 bert-base'")
    if missing := next((name for name in chosen if name not in known), None):
        raise ValueError(f"no published figures of {missing!r}; there are figures of {', '.join(sorted(known))}")
    rows = []
    for model in sorted((known[name] for name in chosen), key=lambda model: model.date):
        counted = af.count(af.spec(model.zoo))
        depth, width, heads, inner = shape(counted.spec)
        estimate = model.estimate_for(counted.active)
        rows.append([model.zoo, model.date, model.kind, depth, width, model.parameters, counted.parameters,
                     model.compute, estimate, counted.active, heads, model.tokens, inner])  # fmt: skip

    def draw() -> Any:
        figure, axes = new(2, 1, 11, 4)
        for axis, column, title in ((axes[0, 0], 6, "parameters, our count"), (axes[0, 1], 7, "training FLOPs")):
            points = []
            for row in rows:
                value = row[column] or (row[8] if column == 7 else None)
                if value:
                    time = known[row[0]].time
                    axis.plot(time, value, KINDS[row[2]], color=f"C{list(KINDS).index(row[2])}")
                    points.append((row[0], time, value))
            axis.set(yscale="log", title=title)
            axis.margins(x=0.25, y=0.15)
            axis.locator_params(axis="x", nbins=5)
            axis.grid(alpha=0.3)
            name_points(axis, points)
        for i, (kind, mark) in enumerate(KINDS.items()):
            axes[0, 0].plot([], [], mark, color=f"C{i}", label=kind)
        axes[0, 0].legend(frameon=False, fontsize=8)
        return figure

    first, last = rows[0], max(rows, key=lambda row: row[6])
    worst = max(rows, key=lambda row: abs(row[6] / row[5] - 1))
    factor = last[6] / first[6]
    return Shown(
        f"{last[0]} has {factor:,.{0 if factor >= 10 else 1}f} times the parameters of {first[0]}, and a token uses "
        f"{last[9]:,}. Our count differs most from the published figure for {worst[0]}: {worst[6]:,} and "
        f"{worst[5]:,.0f}.",
        [
            Table(title, [name for name, _ in columns], [[row[i] for _, i in columns] for row in rows])
            for title, columns in TABLES.items()
        ],
        draw,
    )  # fmt: skip


def shape(spec: Any) -> tuple[int, int, int | None, int | None]:
    """Return layers (of both stacks), width, heads and feed-forward width."""
    parts = dict(spec.items())
    stacks = [parts[name] for name in ("encoder", "decoder") if name in parts]
    heads = next((part.num_heads for _, part in walk(spec) if isinstance(part, HasHeads)), None)
    inner = next((part.width for _, part in walk(spec) if isinstance(part, (MLP, GatedMLP))), None)
    return sum(len(stack.order or range(stack.depth)) for stack in stacks), spec.width, heads, inner
