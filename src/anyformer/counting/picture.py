"""Plots of parameters and FLOPs. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

COLORS = ("#2f5c9e", "#7fa3d1", "#c2552d", "#8a9a5b", "#b8b8b0")


def by_part(path: Path, title: str, parts: Mapping[str, int], flops: Mapping[str, int]) -> None:
    """Plot each part's share of the parameters and, if `flops` is not empty, of the FLOPs as bars."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys((*parts, *flops)))
    figure = Figure(figsize=(8, 1.2 + 0.4 * len(names)), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    kinds = [("parameters", parts, COLORS[0]), *([("FLOPs", flops, COLORS[2])] if flops else [])]
    height = 0.8 / len(kinds)
    for i, (kind, sizes, color) in enumerate(kinds):
        total = max(sum(sizes.values()), 1)
        heights = [row + (i - (len(kinds) - 1) / 2) * height for row in range(len(names))]
        axes.barh(heights, [100 * sizes.get(name, 0) / total for name in names], height, color=color, label=kind)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel="share in %", title=title)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def by_size(path: Path, sizes: Sequence[tuple[int, Mapping[str, int]]], reads: str) -> None:
    """Plot shares of FLOPs against size. `sizes`: (parameters, FLOPs by purpose); `reads`: the input, for the axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    kinds = list(sizes[0][1])
    shares = [[100 * flops[kind] / sum(flops.values()) for _, flops in sizes] for kind in kinds]
    axes.stackplot([size for size, _ in sizes], shares, labels=kinds, colors=COLORS)
    share = f"share of FLOPs in %, {reads}" if reads else "share of FLOPs in %"
    axes.set(xscale="log", xlabel="parameters", ylabel=share, ylim=(0, 100))
    axes.legend(loc="lower left", frameon=True)
    figure.savefig(path)
