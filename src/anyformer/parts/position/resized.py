"""Learned positions of image patches that fit every image size."""

from __future__ import annotations

from typing import ClassVar

from anyformer.parts.position.absolute import Learned


class ResizedLearned(Learned, called=("interpolated positions",)):
    """Learned positions of a grid of patches. `PatchEmbedding` interpolates them to the grid of each image, also
    without `interpolate_pos_encoding=True` [Oquab et al. 2023]."""

    always_resized: ClassVar[bool] = True

    antialias: bool = False  # smooth the table before its grid becomes smaller
