"""A linear layer between a stack and its head."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from anyformer.parts.layer_mix import Neck
from anyformer.runtime.context import Context
from anyformer.runtime.taps import TapNames
from anyformer.specs.checks import at_least
from anyformer.specs.part import Site


class OutputProjection(Neck, sees="itself"):
    """A linear layer without a bias that changes the width of the last states (OPT-350M)."""

    linear: ClassVar[bool] = True

    width: int

    def check(self) -> None:
        at_least(self, 1, "width")

    def out_width(self, width: int) -> int:
        return self.width

    def build(self, site: Site) -> nn.Module:
        return OutputProjectionModule(self, site)


class OutputProjectionModule(nn.Module):
    tapped: ClassVar[TapNames] = {"projected": "hidden_states"}

    def __init__(self, part: OutputProjection, site: Site) -> None:
        super().__init__()
        self.address = site.address
        self.project = nn.Linear(site.width, part.width, bias=False)

    def forward(self, states: list[Tensor], ctx: Context) -> tuple[Tensor, Context]:
        return ctx.tap(self.address, "projected", self.project(states[-1])), ctx
