"""Weights that published checkpoints carry and no forward pass reads."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from anyformer.parts.op import Op
from anyformer.parts.position.absolute import InputPosition
from anyformer.runtime.context import Context
from anyformer.specs.part import Part, Sees, Site


class Idle(Op, sees="itself"):
    """Keeps the weights of `part`, frozen, so that they load, count and save as published; x goes by untouched."""

    part: Part

    def reaches(self) -> Sees | None:
        return "itself"

    def build(self, site: Site) -> nn.Module:
        return IdleModule(self, site)


class IdleModule(InputPosition):
    silent = True

    def __init__(self, idle: Idle, site: Site) -> None:
        super().__init__()
        self.part = idle.part.build(site.child("part")).requires_grad_(False)

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        return x

    def add(self, x: Tensor, ctx: Context) -> Tensor:
        return x
