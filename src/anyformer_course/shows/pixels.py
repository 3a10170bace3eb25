"""Attention over pixels: too many pairs for the whole picture, so each pixel attends to the pixels around it.

A convolution multiplies the neighbours of every pixel by the same numbers. Attention computes new weights at each
pixel: here, the more alike a neighbour is, the larger its weight [Hu et al. 2019].
"""

from __future__ import annotations

from typing import Any

import torch

from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table

SIDE = 15  # of the drawn picture


def example(*, side: int = 224, window: int = 7, sharpness: float = 8.0) -> Shown:
    """Count pairs for a picture of `side` x `side` pixels; compute the weights of two pixels in a small drawing."""
    if window % 2 == 0 or not 3 <= window <= SIDE or side < window:
        raise ValueError(f"window must be odd, from 3 to {SIDE}, and not larger than side; got {window} and {side}")
    pixels, patches = side * side, (side // 16) ** 2
    pairs = {
        "all pixels": (pixels, pixels**2), f"{window} x {window} around each pixel": (pixels, pixels * window**2),
        "row, then column (factorized)": (pixels, pixels * 2 * side), "patches of 16 x 16": (patches, patches**2),
    }  # fmt: skip
    rows = [[name, tokens, count, count * 2 / 2**30] for name, (tokens, count) in pairs.items()]  # bfloat16
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    picture = ((y - 7) ** 2 + (x - 7) ** 2 < 17).float()  # a disc
    places = {"inside the disc": (7, 7), "at its edge": (7, 11)}
    weights = {name: around(picture, *place, window, sharpness) for name, place in places.items()}
    same = 1 / window**2
    local = [
        [name, float(each.max()), float(each.min()), float(on_disc(picture, *places[name], window, each)), same]
        for name, each in weights.items()
    ]

    def draw() -> Any:
        figure, axes = new(4, 1, 13, 3.4)
        axes[0, 0].imshow(picture.numpy(), cmap="gray")
        for name, (row, column) in places.items():
            axes[0, 0].plot(column, row, "o", label=name)
        axes[0, 0].legend(fontsize=7)
        axes[0, 0].set_title("picture and two pixels", fontsize=9)
        for axis, (name, each) in zip(axes[0, 1:], weights.items()):
            axis.imshow(each.numpy(), vmin=0)
            axis.set_title(f"weights {name}", fontsize=9)
        axes[0, 3].barh([row[0] for row in rows][::-1], [row[2] for row in rows][::-1], log=True)
        axes[0, 3].set_title(f"pairs of a layer, {side} x {side}", fontsize=9)
        axes[0, 3].tick_params(labelsize=7)
        return figure

    return Shown(
        f"{side} x {side} pixels are {pixels:,} tokens with {pixels**2:,} pairs; a window of {window} x {window} "
        f"leaves {pixels * window**2:,}, and its weights differ from pixel to pixel (largest {local[0][1]:.3f} and "
        f"{local[1][1]:.3f}).",
        [
            Table("pairs of one attention layer", ("attention", "tokens", "pairs", "GiB of scores per head"), rows),
            Table(f"weights of two pixels, {window} x {window}", ("pixel", "largest weight", "smallest weight",
                  "weight on the disc", "a fixed mean filter"), local),
        ],
        draw,
    )  # fmt: skip


def around(picture: torch.Tensor, row: int, column: int, window: int, sharpness: float) -> torch.Tensor:
    """Return softmax(-sharpness (q - k)^2) over the window around a pixel (window, window)."""
    patch = cut(picture, row, column, window)
    return (-sharpness * (picture[row, column] - patch) ** 2).flatten().softmax(0).view(window, window)


def cut(picture: torch.Tensor, row: int, column: int, window: int) -> torch.Tensor:
    half = window // 2
    padded = torch.nn.functional.pad(picture, (half,) * 4)
    return padded[row : row + window, column : column + window]


def on_disc(picture: torch.Tensor, row: int, column: int, window: int, weights: torch.Tensor) -> torch.Tensor:
    return (weights * cut(picture, row, column, window)).sum()
