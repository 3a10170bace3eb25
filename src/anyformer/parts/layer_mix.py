"""What stands between a stack and its head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anyformer.runtime.context import Context
from anyformer.specs.checks import at_least
from anyformer.specs.part import Part, Site


class Neck(Part):
    """The module maps the states of the layers to what the head reads, with its context. The last state is always
    there; all of them, the stack's input first, where `every_layer` is set."""

    @property
    def every_layer(self) -> bool:
        return False


class LayerMix(Neck, sees="itself"):
    """A learned average of the states of all layers [Peters et al. 2018]; `rest` is what the average goes through."""

    rest: Part | None = None
    tells: bool = False  # the states are part of what the model says, asked for or not
    count: int = 1  # of averages, side by side: one for each layer that looks at them [Bapna et al. 2018]

    def check(self) -> None:
        at_least(self, 1, "count")
        if self.count > 1 and self.rest is not None:
            raise ValueError("LayerMix.rest reads one average; set count=1")

    def out_width(self, width: int) -> int:
        return self.count * width

    @property
    def every_layer(self) -> bool:
        return True

    def build(self, site: Site) -> nn.Module:
        return LayerMixModule(self, site)


class LayerMixModule(nn.Module):
    def __init__(self, part: LayerMix, site: Site) -> None:
        super().__init__()
        each = (part.count,) * (part.count > 1)
        self.weight = nn.Parameter(torch.empty(*each, site.depth + 1))
        self.rest = part.rest.build(site.child("rest")) if part.rest else None

    def forward(self, states: list[Tensor], ctx: Context) -> tuple[Tensor, Context]:
        share = self.weight.softmax(-1).to(states[0].dtype)
        if share.dim() > 1:  # (C, L) of L states
            return torch.einsum("cl,lbtd->btcd", share, torch.stack(states)).flatten(2), ctx
        x = states[0] * share[0]
        for i in range(1, len(states)):
            x = torch.addcmul(x, states[i], share[i])
        return (x if self.rest is None else self.rest(x)), ctx
