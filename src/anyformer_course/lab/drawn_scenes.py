"""Pictures of several shapes, drawn on any device by torch, a batch at a time.

A scene is a row of numbers, and a picture is a function of its scene only, noise included: the same scene always gives
the same picture. The shapes are the masks of `data/drawings.py`, which are moved, turned and scaled.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer_course.data.drawings import COLOURS, PALETTE, SHAPES, SIDE

FIGURES = 3  # per picture; the first is the largest and is behind the others
LARGE, SMALL = (0.45, 0.6), (0.2, 0.3)  # sizes of the first figure and of the others
REACH = 0.4, 0.7  # how far from the centre, first figure and others
BACK, NOISE, TEXTURE = 245.0, 25.0, 512  # background, standard deviation of the noise, side of the noise texture
TEMPLATE = 0.8  # size of a shape in its template
FINER = 2  # a picture is drawn at this multiple of its resolution
# columns of a scene: per figure shape, x, y, size, turn, red, green, blue; then two offsets in the noise texture
COLUMNS, NAMED = 8 * FIGURES + 2, slice(0, 8 * FIGURES)


def draw_scenes(number: int, seed: int) -> Tensor:
    """Return (number, COLUMNS) random scenes. The first scenes of a longer list with the same seed are the same."""
    random = torch.Generator().manual_seed(seed)
    uniform = torch.rand(number, FIGURES * 8 + 3, generator=random)
    figures, rest = uniform[:, NAMED].unflatten(-1, (FIGURES, 8)), uniform[:, 8 * FIGURES :]
    first = torch.arange(FIGURES) == 0
    low, high = (torch.where(first, a, b) for a, b in zip(LARGE, SMALL))
    reach = torch.where(first, *REACH)[:, None]
    palette = torch.tensor([COLOURS[name] for name in PALETTE], dtype=torch.float32)
    scenes = torch.empty(number, FIGURES, 8)
    scenes[..., 0] = (figures[..., 0] * len(SHAPES)).floor()
    scenes[..., 1:3] = (2 * figures[..., 1:3] - 1) * reach
    scenes[..., 3] = low + (high - low) * figures[..., 3]
    scenes[..., 4] = (2 * figures[..., 4] - 1) * math.pi
    scenes[..., 5:] = palette[(figures[..., 5] * len(PALETTE)).long()] + 24 * (figures[..., 5:] - 0.5)
    return torch.cat((scenes.flatten(1), (rest[:, :2] * (TEXTURE - SIDE)).floor()), 1)


class Painter:
    """Draws scenes on a device."""

    def __init__(self, device: str) -> None:
        masks = [torch.from_numpy(mask(0.0, 0.0, TEMPLATE, 0.0)) for mask in SHAPES.values()]
        self.templates = torch.stack(masks).float()[:, None].to(device)  # (shapes, 1, side, side)
        random = torch.Generator().manual_seed(0)
        self.noise = NOISE * torch.randn(3, TEXTURE, TEXTURE, generator=random).to(device)

    def labels(self, scenes: Tensor) -> Tensor:
        """Return the number of the largest shape of each scene (B,)."""
        return scenes[:, 0].long()

    def draw(self, scenes: Tensor) -> Tensor:
        """Return pictures (B, 3, SIDE, SIDE) of about -1 to 1."""
        side = FINER * SIDE
        pictures = scenes.new_full((len(scenes), 3, side, side), BACK)
        for figure in scenes[:, NAMED].unflatten(-1, (FIGURES, 8)).unbind(1):
            shape, x, y, size, turn, *colour = figure.unbind(-1)
            mask = self.place(shape.long(), x, y, size, turn, side)
            pictures = torch.lerp(pictures, torch.stack(colour, 1)[..., None, None], mask)
        return (F.avg_pool2d(pictures, FINER) + self.noise_of(scenes)) / 127.5 - 1

    def place(self, shape: Tensor, x: Tensor, y: Tensor, size: Tensor, turn: Tensor, side: int) -> Tensor:
        """Return masks (B, 1, side, side) of shapes at (x, y), turned and scaled."""
        scale, cos, sin = TEMPLATE / size, turn.cos(), turn.sin()
        rows = torch.stack((cos, sin, -cos * x - sin * y, -sin, cos, sin * x - cos * y), 1) * scale[:, None]
        grid = F.affine_grid(rows.unflatten(-1, (2, 3)), [len(shape), 1, side, side], align_corners=False)
        return F.grid_sample(self.templates[shape], grid, align_corners=False)

    def noise_of(self, scenes: Tensor) -> Tensor:
        """Return the part of the noise texture that belongs to each scene (B, 3, SIDE, SIDE)."""
        index = torch.arange(SIDE, device=scenes.device)
        across, down = (scenes[:, i, None].long() + index for i in (-2, -1))
        return self.noise[:, down[:, :, None], across[:, None, :]].movedim(1, 0)
