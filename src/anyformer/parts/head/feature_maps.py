"""The states of several layers of an image encoder, which detectors and segmenters read.

B batch, T tokens, D width, H and W sides of the grid of patches.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyformer.parts.base import PartModule
from anyformer.parts.head.base import Head, HeadModule
from anyformer.parts.layer_mix import Neck
from anyformer.parts.norm import Norm
from anyformer.parts.unused import Unused
from anyformer.runtime.context import Context
from anyformer.runtime.grid import Grid
from anyformer.specs.field_types import Count, Natural
from anyformer.specs.part import Site


class ChosenLayers(Neck, sees="itself"):
    """The states of the chosen `layers` side by side, each after the same norm. Layer 0 is the input of the stack."""

    every_layer: ClassVar[bool] = True

    layers: tuple[Natural, ...]
    norm: Norm | Unused | None = None

    def check(self) -> None:
        if not self.layers or list(self.layers) != sorted({*self.layers}):
            raise ValueError(f"ChosenLayers.layers is {self.layers}; give at least one layer, in order, each once")

    def out_width(self, width: int) -> int:
        return len(self.layers) * width


class ChosenLayersModule(PartModule, of=ChosenLayers):
    def __init__(self, part: ChosenLayers, site: Site) -> None:
        super().__init__()
        if part.layers[-1] > site.depth:
            raise ValueError(f"{site.address}.layers: layer {part.layers[-1]} does not exist; the last is {site.depth}")
        self.layers = part.layers
        self.norm = part.norm.build(site.child("norm")) if part.norm else nn.Identity()

    def forward(self, states: list[Tensor], ctx: Context) -> tuple[Tensor, Context]:
        return torch.cat([self.norm(states[i]) for i in self.layers], dim=-1), ctx


class FeatureMapsHead(Head, sees="itself", called=("backbone", "dense features")):
    """Returns the states of `ChosenLayers` as `feature_maps`: a tuple of images (B, D, H, W) without prefix tokens, or
    of tokens (B, T, D) if `images` is False."""

    requires: ClassVar[tuple[str, ...]] = ("an image",)

    width: Count  # D of each map
    images: bool = True


class FeatureMapsModule(HeadModule, of=FeatureMapsHead):
    def __init__(self, part: FeatureMapsHead, site: Site) -> None:
        super().__init__()
        self.part = part
        if site.width % part.width:
            raise ValueError(
                f"{site.address}.width is {part.width}; it must divide the width of the states, {site.width}"
            )

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> dict[str, Any]:
        if self.part.images:
            grid = ctx.extra(Grid)
            assert grid is not None
            x = x[:, -math.prod(grid) :].transpose(1, 2).unflatten(2, grid)
        return {"feature_maps": x.split(self.part.width, dim=1 if self.part.images else -1)}
