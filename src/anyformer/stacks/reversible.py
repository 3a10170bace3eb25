"""Reversible layers: their input can be recomputed from their output.

B batch, T tokens, D width.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from anyformer.kernels.reversible import Gradients, StepStart
from anyformer.runtime.context import Context
from anyformer.specs.part import Site
from anyformer.stacks.block import Block, BlockModule
from anyformer.stacks.sublayer import Sublayer, SublayerModule, apply


class Reversible(Block, sees="itself", called=("RevNet", "reversible residual")):
    """Steps between two streams, concatenated as (B, T, 2 D) [Gomez et al. 2017]: each step reads the second stream and
    adds its branch to the first; then the streams swap. Subtracting the branch gives the input back, so training stores
    only the last state of a stack [Kitaev et al. 2020]."""

    streams: ClassVar[int] = 2

    def __init__(self, **steps: Any) -> None:
        super().__init__(**steps)
        for name, step in steps.items():
            if not isinstance(step, Sublayer):
                kind = type(step).__name__
                raise ValueError(f"Reversible.{name}: expected a Sublayer, got a {kind}")
            step.check_separable(f"Reversible.{name}")
            if not step.residual.undoes:
                raise ValueError(f"Reversible.{name}.residual: {step.residual} is not reversible; Add() is")


class ReversibleModule(BlockModule, of=Reversible):
    step_starts: list[StepStart] | None = None  # of each step, if the backward pass recomputes its input

    def __init__(self, part: Reversible, site: Site) -> None:
        super().__init__(part, dataclasses.replace(site, width=site.width // 2))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        for step in self.active_steps(ctx):
            if self.step_starts is not None:
                self.step_starts.append(StepStart.save(x, ctx.shared))
            joined, read = x.chunk(2, -1)
            x = torch.cat((read, step(read, ctx, joined)), -1)
        return x

    def active_steps(self, ctx: Context) -> list[SublayerModule]:
        steps = (step for step in self.children() if isinstance(step, SublayerModule))
        return [step for step in steps if not step.is_skipped(ctx)]

    def rewind(
        self, y: Tensor, gradient: Tensor, ctx: Context, starts: list[StepStart], found: Gradients
    ) -> tuple[Tensor, Tensor]:
        for step, start in zip(reversed(self.active_steps(ctx)), reversed(starts), strict=True):
            read, made = y.chunk(2, -1)
            gradient_read, gradient_made = gradient.chunk(2, -1)
            learned = [parameter for parameter in step.parameters() if parameter.requires_grad]
            with torch.enable_grad(), start.restore_random(y):
                read = read.detach().requires_grad_()
                branch = step.branch(read, ctx.replace(shared={**start.shared}))
                joined = step.residual.undo(made, branch.detach()).detach().requires_grad_()
                again = apply(step.residual, ctx, joined, branch)
            of_joined, of_read, *rest = torch.autograd.grad(
                again, (joined, read, *learned), gradient_made.to(again.dtype), allow_unused=True
            )
            found.add(learned, rest)
            of_read = gradient_read if of_read is None else gradient_read + of_read
            y, gradient = torch.cat((joined.detach(), read.detach()), -1), torch.cat((of_joined, of_read), -1)
        return y, gradient
