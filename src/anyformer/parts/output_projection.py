"""A linear layer between a stack and its head."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from anyformer.parts.base import PartModule
from anyformer.parts.layer_mix import Neck
from anyformer.runtime.context import Context
from anyformer.runtime.taps import TapNames
from anyformer.specs.field_types import Count
from anyformer.specs.part import Site


class OutputProjection(Neck, sees="itself"):
    """A linear layer without a bias that changes the width of the last states (OPT-350M)."""

    linear: ClassVar[bool] = True

    width: Count

    def out_width(self, width: int) -> int:
        return self.width


class OutputProjectionModule(PartModule, of=OutputProjection):
    tapped: ClassVar[TapNames] = {"projected": "hidden_states"}

    def __init__(self, part: OutputProjection, site: Site) -> None:
        super().__init__()
        self.address = site.address
        self.project = nn.Linear(site.width, part.width, bias=False)

    def forward(self, states: list[Tensor], ctx: Context) -> tuple[Tensor, Context]:
        return ctx.tap(self.address, "projected", self.project(states[-1])), ctx
