"""Conversion of model pixels to pictures, and contact sheets of many pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from anyformer.inputs.image import Images, pillow
from anyformer.specs.messages import quote


def to_bytes(pixels: Tensor, images: Images) -> np.ndarray:
    """Invert the rescaling and normalization of `images`: pixel values (N, C, H, W) -> bytes (N, H, W, C)."""
    values = pixels.detach().float().cpu().numpy().astype(np.float64)
    if images.do_normalize:
        mean, std = (np.asarray(v, np.float64).reshape(-1, 1, 1) for v in (images.image_mean, images.image_std))
        values = values * std + mean
    if images.do_rescale:
        values = values / images.rescale_factor
    return values.round().clip(0, 255).astype(np.uint8).transpose(0, 2, 3, 1)


def largest_value(images: Images) -> float:
    """Return the largest absolute pixel value that `images` can produce."""
    ends = np.asarray([0.0, 255.0]) * (images.rescale_factor if images.do_rescale else 1.0)
    if images.do_normalize:
        mean, std = (np.asarray(v, np.float64).reshape(-1, 1) for v in (images.image_mean, images.image_std))
        ends = (ends - mean) / std
    return float(np.abs(ends).max())


def write_sheet(path: str | Path, rows: Sequence[np.ndarray], gap: int = 2) -> None:
    """Write rows of pictures, bytes (N, H, W, C) each, to one file with white gaps. The suffix selects the format."""
    Image, _ = pillow()
    shapes = {row.shape[1:] for row in rows}
    if len(shapes) != 1 or min(len(row) for row in rows) < 1:
        raise ValueError(f"every row of a sheet needs pictures, all of one shape; got shapes {quote(sorted(shapes))}")
    ((height, width, channels),) = shapes
    most = max(len(row) for row in rows)
    sheet = np.full((len(rows) * (height + gap) - gap, most * (width + gap) - gap, channels), 255, np.uint8)
    for i, row in enumerate(rows):
        for j, picture in enumerate(row):
            top, left = i * (height + gap), j * (width + gap)
            sheet[top : top + height, left : left + width] = picture
    try:
        Image.fromarray(sheet if channels == 3 else sheet[..., 0]).save(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be written ({error})") from None
