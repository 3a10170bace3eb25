"""A Stack with a learned vector per step (Universal Transformer)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyformer.parts.init import Normal
from anyformer.runtime.context import Context
from anyformer.specs.part import Site
from anyformer.stacks.stack import Stack, StackModule


class TimedStack(Stack, sees="itself", called=("Universal Transformer",)):
    """A Stack that adds a learned vector to the stream before each step; with `order`, layers run in several steps
    [Dehghani et al. 2019]."""

    def check(self) -> None:
        super().check()
        if self.reshapes:
            raise ValueError(
                "TimedStack.layers: step vectors need layers that do not change the width or grid; use Stack"
            )


class TimedStackModule(StackModule, of=TimedStack):
    starts: ClassVar[dict[str, Any]] = {"timing": Normal(std=0.02)}

    def __init__(self, part: TimedStack, site: Site) -> None:
        super().__init__(part, site)
        self.timing = nn.Parameter(torch.empty(len(part.steps), part.widths(site.width)[0]))

    def step_input(self, x: Tensor, step: int) -> Tensor:
        return x + self.timing[step]

    def rewinds(self, x: Tensor, ctx: Context) -> bool:
        return False
