"""The matplotlib figures of this package: heat maps, tables and bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # figures of published numbers do not need torch
    from torch import Tensor


def new(columns: int = 1, rows: int = 1, width: float = 6, height: float = 4, **layout: Any) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("figures need matplotlib: pip install 'anyformer[look]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **layout)


def heat_maps(
    maps: Sequence[Tensor],
    titles: Sequence[str],
    title: str,
    tokens: list[str] | None = None,
    limits: tuple[float, float] | None = None,
    columns_are_tokens: bool = True,
) -> Any:
    """Draw maps in rows of up to four. Without `limits`, the colors of each map span its own range of values. `tokens`
    name the rows, and the columns if `columns_are_tokens`, of maps of this size."""
    low, high = limits or (None, None)
    columns = min(len(maps), 4)
    rows = math.ceil(len(maps) / columns)
    figure, axes = new(columns, rows, 2.6 * columns + 0.6, 2.4 * rows + 0.5)
    for i, axis in enumerate(axes.flat):
        if i >= len(maps):
            axis.axis("off")
            continue
        axis.imshow(maps[i].detach().cpu().numpy(), aspect="auto", interpolation="nearest", vmin=low, vmax=high)
        axis.set_title(titles[i], fontsize=9)
        axis.tick_params(labelsize=7)
        axis.locator_params(integer=True)  # columns have no fractions
        if tokens is not None and len(tokens) <= 24:
            rows_named, columns_named = (number == len(tokens) for number in maps[i].shape)
            if rows_named:
                axis.set_yticks(range(len(tokens)), tokens, fontsize=6)
            if columns_named and columns_are_tokens:
                axis.set_xticks(range(len(tokens)), tokens, fontsize=6, rotation=90)
    figure.suptitle(plain(title), fontsize=10)
    return figure


def table(
    values: Tensor, words: list[list[str]] | None, rows: list[str], columns: list[str], diverging: bool = False
) -> Any:
    """Draw numbers as colors, with words in the cells if `words` is given."""
    height, width = values.shape
    figure, axes = new(1, 1, 1.8 + 0.75 * width if words else 3.5 + 0.25 * width, 0.8 + 0.32 * height)
    axis, shown = axes[0, 0], values.detach().float().cpu()
    most = float(shown.nan_to_num().abs().max()) or 1.0
    limits = {"vmin": -most, "vmax": most, "cmap": "RdBu"} if diverging else {"vmin": 0, "vmax": 1, "cmap": "Blues"}
    image = axis.imshow(shown.numpy(), aspect="auto", **limits)
    figure.colorbar(image, ax=axis)
    axis.set_yticks(range(height), rows, fontsize=7)
    axis.set_xticks(range(width), columns, fontsize=7)
    for i, line in enumerate(words or ()):
        for j, word in enumerate(line):
            color = "white" if float(shown[i, j]) > 0.6 else "black"
            axis.text(j, i, plain(word)[:10], ha="center", va="center", fontsize=7, color=color)
    return figure


def bars(lines: Sequence[tuple[str, float]], title: str) -> Any:
    figure, axes = new(1, 1, 6, 0.8 + 0.22 * len(lines))
    axis = axes[0, 0]
    axis.barh([name for name, _ in lines][::-1], [value for _, value in lines][::-1])
    axis.axvline(0, color="black", linewidth=0.5)
    axis.tick_params(labelsize=7)
    axis.set_title(plain(title), fontsize=9)
    return figure


def plain(text: str) -> str:
    """Return text that matplotlib can draw and does not parse as math."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text).replace("$", r"\$")
