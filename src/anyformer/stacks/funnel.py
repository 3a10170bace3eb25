"""A sequence of stacks, each on a shorter sequence than the previous one.

B batch, T tokens, D width.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from anyformer.kernels.capture import can_read_values
from anyformer.parts.attention.latent import LatentAttention
from anyformer.parts.base import PartModule
from anyformer.parts.halve import Halve
from anyformer.parts.position.segments import Segments
from anyformer.runtime.context import Context, leading_pads
from anyformer.runtime.taps import OutputCollector, TapNames
from anyformer.specs.part import Site, walk
from anyformer.stacks.backbone import Backbone
from anyformer.stacks.stack import Stack, StackModule


class Funnel(Backbone, sees="all", called=("Funnel Transformer",)):
    """Stages of decreasing length with pooling between them [Dai et al. 2020]. An optional `top` has the full length
    again: its input is the last stage, repeated to that length, plus the output of the first stage. Left padding is
    moved to the end, so that each row starts with the first token of its text. Packed documents are refused."""

    stages: tuple[Stack, ...]
    pool: Halve = Halve()
    top: Stack | None = None
    resume: int | None = None  # `top` gets the first stage's states after this many layers; default: after all

    def check(self) -> None:
        if not self.stages:
            raise ValueError("Funnel.stages is empty; it needs at least one Stack")
        for name, stack in (*((f"stages.{i}", stage) for i, stage in enumerate(self.stages)), ("top", self.top)):
            if stack is not None:
                stack.check_inner(f"Funnel.{name}")
            for path, part in walk(stack, f"Funnel.{name}"):
                if "token ids" in part.requires:
                    raise ValueError(f"{path}: {type(part).__name__} needs token ids, which Funnel pools; use a Stack")
        for i, stage in enumerate(self.stages[1:] if self.pool.queries_only else (), 1):
            for path, part in walk(stage.layer(0), f"Funnel.stages.{i}.layers.0") if stage.depth else ():
                if isinstance(part, LatentAttention):
                    raise ValueError(f"{path}: LatentAttention cannot attend to a longer sequence; Attention can")
        if self.resume is not None and not 0 <= self.resume <= len(self.stages[0].steps):
            raise ValueError(f"Funnel.resume is {self.resume}; the first stage has {len(self.stages[0].steps)} steps")


class FunnelModule(PartModule, of=Funnel):
    tapped: ClassVar[TapNames] = {"input": "hidden_states"}

    def __init__(self, part: Funnel, site: Site) -> None:
        super().__init__()
        self.part, self.address = part, site.address
        total, first = sum(stage.depth for stage in part.stages) + (part.top.depth if part.top else 0), 0
        self.stages = nn.ModuleList()
        for i, stage in enumerate(part.stages):
            self.stages.append(stage.build(site.child(f"stages.{i}", layer=first, depth=total)))
            first += stage.depth
        self.top = part.top.build(site.child("top", layer=first, depth=total)) if part.top else None

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Context]:
        if ctx.documents is not None:
            raise ValueError("Funnel pools neighbouring tokens, so documents cannot be packed: pass one per row")
        outer, length = ctx, x.shape[1]
        order = first_to_front(ctx)
        if order is not None:
            x, ctx = align_left(x, ctx, order)
        level = ctx
        below = x = ctx.tap(self.address, "input", x)
        for i, stage in enumerate(self.stages):
            x, level, first_ctx = self.part.pool.step(x, level) if i else (x, level, level)
            states: list[Tensor] = []
            x, _ = stage(x, level, None if first_ctx is level else first_ctx, states)
            if i == 0:
                below = x if self.part.resume is None else states[self.part.resume]
        if self.top is None:
            return x, outer.replace(index=level.index, positions=level.positions, is_token=level.is_token)
        x = self.part.pool.lengthen(x, length, 2 ** (len(self.stages) - 1)) + below
        x, _ = self.top(x, ctx.replace(shared={}))
        return (x if order is None else x.scatter(1, order[..., None].expand_as(x), x)), outer

    @property
    def last_stack(self) -> StackModule:
        return self.stages[-1] if self.top is None else self.top  # type: ignore[return-value]

    def finish(self, states: list[Tensor], ctx: Context) -> tuple[Tensor, Context]:
        """Return the input of the head, computed from the states of the last stack."""
        return self.last_stack.finish(states, ctx)

    def collect_outputs(self, seen: OutputCollector) -> dict[str, list[Tensor]]:
        """Return the states of all stages and of the top; only the first stage and the top include their input."""
        found = seen.values_below(self.address, self.tapped)
        for stack in (*self.stages, *([] if self.top is None else [self.top])):
            for kind, values in stack.collect_outputs(seen).items():
                within = kind == "hidden_states" and stack is not self.top
                found.setdefault(kind, []).extend(values[1:] if within else values)
        return found


def first_to_front(ctx: Context) -> Tensor | None:
    """Return the indices (B, T) that move left padding to the end of each row; None without left padding."""
    if ctx.is_token is None:
        return None
    pads, length = leading_pads(ctx.is_token), ctx.is_token.shape[1]
    if can_read_values() and not bool((pads % length).any()):
        return None
    return (ctx.index + pads) % length


def align_left(x: Tensor, ctx: Context, order: Tensor) -> tuple[Tensor, Context]:
    assert ctx.is_token is not None
    segments = ctx.extra(Segments)
    moved = () if segments is None else (Segments(segments.kinds.gather(1, order)),)
    ctx = ctx.replace(*moved, is_token=ctx.is_token.gather(1, order), positions=ctx.index[None])
    return x.gather(1, order[..., None].expand_as(x)), ctx
