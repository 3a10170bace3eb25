"""Stacks one after another, each on a shorter sequence than the one before.

B batch, T tokens, D width.
"""

from __future__ import annotations

import dataclasses

from torch import Tensor, nn

from anyformer.block import Stack
from anyformer.context import Capture, Context, leading_pads
from anyformer.kernels.recording import recording
from anyformer.parts.shorten import Halve
from anyformer.spec import Part, Site


class Funnel(Part, sees="all"):
    """Stages with a step down between each two, and at will a `top` that reads the full length again: each token of the
    last stage stands for all it was made of, added to what the first stage said [Dai et al. 2020]. Pads on the left are
    moved to the end, so that the first token of a text is the first of its row; packed documents are refused."""

    stages: tuple[Stack, ...]
    pool: Halve = Halve()
    top: Stack | None = None
    resume: int | None = None  # the steps of the first stage after which its states go to the top; all unless said

    def check(self) -> None:
        if not self.stages:
            raise ValueError("Funnel.stages is empty; it needs at least one Stack")
        for name, stack in (*((f"stages.{i}", stage) for i, stage in enumerate(self.stages)), ("top", self.top)):
            if stack is not None:
                stack.check_inner(f"Funnel.{name}")
        if self.resume is not None and not 0 <= self.resume <= len(self.stages[0].steps):
            raise ValueError(f"Funnel.resume is {self.resume}; the first stage has {len(self.stages[0].steps)} steps")

    def out_width(self, width: int) -> int:
        return width

    def build(self, site: Site) -> nn.Module:
        return FunnelModule(self, site)


class FunnelModule(nn.Module):
    def __init__(self, part: Funnel, site: Site) -> None:
        super().__init__()
        self.part = part
        total, first = sum(stage.depth for stage in part.stages) + (part.top.depth if part.top else 0), 0
        self.stages = nn.ModuleList()
        for i, stage in enumerate(part.stages):
            self.stages.append(stage.build(site.child(f"stages.{i}", layer=first, depth=total)))
            first += stage.depth
        self.top = part.top.build(site.child("top", layer=first, depth=total)) if part.top else None

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.documents is not None:
            raise ValueError("neighbours of a row are joined here: packed documents cannot be read, give them as rows")
        outer, length = ctx, x.shape[1]
        order = first_to_front(ctx)
        if order is not None:
            x, ctx = rearranged(x, ctx, order)
        level = ctx = dataclasses.replace(ctx)  # layers may be run again in the backward pass: they keep their own
        if outer.capture is not None and outer.capture.hidden_states:
            outer.capture.add("hidden_states", x)
        below = x
        for i, stage in enumerate(self.stages):
            x, level, looking = self.part.pool.step(x, level) if i else (x, level, level)
            x, states = run(stage, x, level, looking, states=i == 0 and self.part.resume is not None)
            if i == 0:
                below = x if self.part.resume is None else states[self.part.resume]
        if self.top is None:
            outer.index, outer.positions, outer.padding = level.index, level.positions, level.padding
            return x
        x = self.part.pool.lengthen(x, length, 2 ** (len(self.stages) - 1)) + below
        if outer.capture is not None and outer.capture.hidden_states:
            outer.capture.add("hidden_states", x)
        ctx = dataclasses.replace(ctx, shared={})
        x, _ = run(self.top, x, ctx, ctx)
        return x if order is None else x.scatter(1, order[..., None].expand_as(x), x)


def run(stack: nn.Module, x: Tensor, ctx: Context, first: Context, states: bool = False) -> tuple[Tensor, list[Tensor]]:
    """A stack, and its states where they are asked for. What was captured is handed on, but for the stack's input."""
    outer = ctx.capture
    wanted = Capture() if outer is None else Capture(outer.attentions, outer.hidden_states, outer.router_logits)
    wanted.hidden_states |= states
    inner = wanted if wanted.attentions or wanted.hidden_states or wanted.router_logits else None
    x = stack(x, dataclasses.replace(ctx, capture=inner), dataclasses.replace(first, capture=inner))
    for kind, values in wanted.seen.items() if outer is not None else ():
        if kind != "hidden_states":
            outer.seen.setdefault(kind, []).extend(values)  # type: ignore[union-attr]
        elif outer.hidden_states:  # type: ignore[union-attr]
            outer.seen[kind].extend(values[1:])  # type: ignore[union-attr]
    return x, wanted.seen.get("hidden_states", [])


def first_to_front(ctx: Context) -> Tensor | None:
    """(B, T) the places of each row's tokens when pads before the first go to the end; None where there are none."""
    if ctx.padding is None:
        return None
    pads, length = leading_pads(ctx.padding), ctx.padding.shape[1]
    if not recording() and not bool((pads % length).any()):
        return None
    return (ctx.index + pads) % length


def rearranged(x: Tensor, ctx: Context, order: Tensor) -> tuple[Tensor, Context]:
    assert ctx.padding is not None
    segments = None if ctx.segments is None else ctx.segments.gather(1, order)
    ctx = dataclasses.replace(ctx, padding=ctx.padding.gather(1, order), segments=segments, positions=ctx.index[None])
    return x.gather(1, order[..., None].expand_as(x)), ctx
