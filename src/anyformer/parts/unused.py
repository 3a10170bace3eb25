"""Weights that are in published checkpoints but that no forward pass uses."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import Tensor, nn

from anyformer.parts.base import InputPosition, PartModule
from anyformer.parts.layer_mix import Neck
from anyformer.parts.op import Op
from anyformer.runtime.context import Context
from anyformer.specs.part import Part, Sees, Site

M = TypeVar("M", bound=nn.Module)


def mark_unused(module: M) -> M:
    """Freeze `module`, exclude it from traces and return it. Its weights load, count and save, but are not used."""
    module.requires_grad_(False)
    module.__dict__["silent"] = True
    return module


class PartlyUsed(PartModule):
    """A module, such as experts, that uses only some of its parameters for a token."""

    unused: float  # the share of the parameters that a token does not use


class Unused(Op, sees="itself"):
    """Keeps the frozen weights of `part`, so that they load, count and save as published. It returns x unchanged."""

    part: Part

    def reaches(self) -> Sees | None:
        return "itself"


class UnusedModule(InputPosition, of=Unused):
    def __init__(self, part: Unused, site: Site) -> None:
        super().__init__()
        self.part = part.part.build(site.child("part"))
        mark_unused(self)

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        return x

    def add(self, x: Tensor, ctx: Context) -> Tensor:
        return x


class UnusedNeck(Neck, sees="itself"):
    """Keeps the frozen weights of `part`, which another class of the family uses, between a stack and its head. It
    returns the last state unchanged."""

    part: Part

    def reaches(self) -> Sees | None:
        return "itself"


class UnusedNeckModule(PartModule, of=UnusedNeck):
    def __init__(self, part: UnusedNeck, site: Site) -> None:
        super().__init__()
        self.part = part.part.build(site.child("part"))
        mark_unused(self)

    def forward(self, states: list[Tensor], ctx: Context) -> tuple[Tensor, Context]:
        return states[-1], ctx
