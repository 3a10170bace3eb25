"""Patches: a picture as a short sequence of squares instead of a long sequence of pixels.

A picture of 224 x 224 pixels is a sequence of 50,176 pixels, or of 196 patches of 16 x 16. A patch embedding is one
matrix that maps the pixels of a patch to a vector.
"""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer.look import figures
from anyformer.specs.field_types import Count
from anyformer.specs.messages import amount, quote
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._small import module
from anyformer_course.table import tiny


def example(picture: str = "", *, size: int = 224, patch: int = 16, width: Count = 64, seed: int = 0) -> Shown:
    """Cut a picture (a file, or a drawing of ours) of `size` x `size` pixels into patches of side `patch`."""
    if not 0 < patch <= size <= 1024:
        raise ValueError(f"size is {size} and patch is {patch}; give 0 < patch <= size <= 1024")
    pixels = read(picture, size) if picture else draw_sample(size)  # (3, size, size), from 0 to 1
    embedding: Any = module(
        af.parts.PatchEmbedding(image_size=(size, size), patch_size=(patch, patch), pad=False), width, seed
    )
    with torch.no_grad():
        vectors = embedding({"pixel_values": pixels[None]})[0][0]  # (N, D)
        squares = pixels[None].unfold(2, patch, patch).unfold(3, patch, patch)  # (1, 3, rows, columns, P, P)
        flat = squares.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)[0]  # (N, 3 P P)
        weight, bias = embedding.patch.weight.flatten(1), embedding.patch.bias
        error = float((flat @ weight.T + bias - vectors).abs().max())
    side = size // patch
    rows: list[list[Any]] = [
        [name, number, number**2, 4 * number**2 * width]
        for name, number in (("pixels", size * size), (f"patches of {patch} x {patch}", side * side))
    ]

    def draw() -> Any:
        figure, axes = figures.new(2, 1, 8, 4)
        axes[0, 0].imshow(pixels.permute(1, 2, 0).numpy())
        axes[0, 0].set_title(f"{size} x {size} = {size * size:,} pixels", fontsize=10)
        gap = 1 + patch // 8
        sheet = torch.ones(side * (patch + gap), side * (patch + gap), 3)
        for i, square in enumerate(flat.view(-1, 3, patch, patch)):
            top, left = i // side * (patch + gap), i % side * (patch + gap)
            sheet[top : top + patch, left : left + patch] = square.permute(1, 2, 0)
        axes[0, 1].imshow(sheet.numpy())
        axes[0, 1].set_title(f"{side} x {side} = {amount(side * side, 'token')}", fontsize=10)
        for axis in axes[0]:
            axis.set_axis_off()
        return figure

    return Shown(
        f"{size * size:,} pixels become {amount(side * side, 'token')}, so attention has "
        f"{rows[0][2] / rows[1][2]:,.0f} times "
        f"fewer pairs. A convolution with stride {patch} and a matrix on flattened patches differ by {tiny(error)}.",
        [
            Table(
                f"a picture of {size} x {size}",
                ("tokens are", "tokens", "pairs in attention", f"FLOPs of scores and sums, width {width}"),
                rows,
            ),
            Table("shapes", ("tensor", "shape"), [
                ["picture", f"3 x {size} x {size}"], ["one patch, flattened", f"{3 * patch * patch}"],
                ["matrix", f"{3 * patch * patch} x {width}"], ["tokens", f"{side * side} x {width}"],
            ]),
        ],
        draw,
    )  # fmt: skip


def draw_sample(size: int) -> torch.Tensor:
    """Return a picture: sky, grass, a sun and a house."""
    rows, columns = torch.meshgrid(torch.linspace(0, 1, size), torch.linspace(0, 1, size), indexing="ij")
    picture = torch.stack((0.45 + 0.3 * rows, 0.7 + 0.2 * rows, torch.full_like(rows, 0.95)))
    areas = (
        (rows > 0.72, (0.3, 0.6, 0.25)), ((rows - 0.2) ** 2 + (columns - 0.78) ** 2 < 0.012, (1.0, 0.85, 0.2)),
        ((rows > 0.5) & (rows < 0.85) & ((columns - 0.35).abs() < 0.17), (0.75, 0.35, 0.25)),
        ((rows > 0.3) & (rows <= 0.5) & ((columns - 0.35).abs() < rows - 0.28), (0.4, 0.2, 0.2)),
        ((rows > 0.66) & (rows < 0.85) & ((columns - 0.35).abs() < 0.04), (0.25, 0.15, 0.1)),
    )  # fmt: skip
    for area, color in areas:
        picture[:, area] = torch.tensor(color)[:, None]
    return picture


def read(path: str, size: int) -> torch.Tensor:
    """Read an image file as (3, size, size)."""
    try:
        from PIL import Image

        with Image.open(path) as file:
            image = file.convert("RGB").resize((size, size))
            return (
                torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(size, size, 3).permute(2, 0, 1)
                / 255
            )
    except ImportError:
        raise ValueError("reading image files needs Pillow: pip install pillow") from None
    except OSError as error:
        raise ValueError(f"{quote(path)}: cannot read this image ({error.strerror or error})") from None
