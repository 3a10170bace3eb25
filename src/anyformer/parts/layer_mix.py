"""Necks: modules between a stack and its head."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.parts.base import PartModule
from anyformer.runtime.context import Context
from anyformer.specs.field_types import Count
from anyformer.specs.part import Part, Site


class Neck(Part, abstract=True):
    """A module between a stack and its head. It maps the layers' states to the input of the head and its context. It
    gets the last state only, or with `every_layer` all states, beginning with the stack's input."""

    linear: ClassVar[bool] = False  # a linear layer `project`, through which scores can be attributed
    every_layer: ClassVar[bool] = False


class LayerMix(Neck, sees="itself"):
    """A learned weighted average of the states of all layers [Peters et al. 2018], followed by `rest`."""

    every_layer: ClassVar[bool] = True

    rest: Part | None = None
    tells: bool = False  # the model always returns hidden_states, even if they are not requested
    count: Count = 1  # number of averages, concatenated: one per decoder layer [Bapna et al. 2018]

    def check(self) -> None:
        if self.count > 1 and self.rest is not None:
            raise ValueError("LayerMix.rest takes a single average; set count=1")

    def out_width(self, width: int) -> int:
        return self.count * width


class LayerMixModule(PartModule, of=LayerMix):
    def __init__(self, part: LayerMix, site: Site) -> None:
        super().__init__()
        each = (part.count,) * (part.count > 1)
        self.weight = nn.Parameter(torch.empty(*each, site.depth + 1))
        self.rest = part.rest.build(site.child("rest")) if part.rest else None

    def forward(self, states: list[Tensor], ctx: Context) -> tuple[Tensor, Context]:
        share = self.weight.softmax(-1).to(states[0].dtype)
        if share.dim() > 1:  # (count, number of states)
            return torch.einsum("cl,lbtd->btcd", share, torch.stack(states)).flatten(2), ctx
        x = states[0] * share[0]
        for i in range(1, len(states)):
            x = torch.addcmul(x, states[i], share[i])
        return (x if self.rest is None else self.rest(x)), ctx
