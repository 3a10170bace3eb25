"""What stands between a stack and its head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anyformer.context import Context
from anyformer.part import Part, Site


class Neck(Part):
    """The module maps the states of the layers to what the head reads, with its context. The last state is always
    there; all of them, the stack's input first, where `every_layer` is set."""

    @property
    def every_layer(self) -> bool:
        return False

    def out_width(self, width: int) -> int:
        return width


class LayerMix(Neck, sees="itself"):
    """A learned average of the states of all layers [Peters et al. 2018]; `rest` is what the average goes through."""

    rest: Part | None = None

    @property
    def every_layer(self) -> bool:
        return True

    def build(self, site: Site) -> nn.Module:
        return LayerMixModule(self, site)


class LayerMixModule(nn.Module):
    def __init__(self, part: LayerMix, site: Site) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(site.depth + 1))
        self.rest = part.rest.build(site.child("rest")) if part.rest else None

    def forward(self, states: list[Tensor], ctx: Context) -> tuple[Tensor, Context]:
        share = self.weight.softmax(-1).to(states[0].dtype)
        x = states[0] * share[0]
        for i in range(1, len(states)):
            x = torch.addcmul(x, states[i], share[i])
        return (x if self.rest is None else self.rest(x)), ctx
