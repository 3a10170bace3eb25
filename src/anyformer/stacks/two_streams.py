"""Two-stream attention: a content stream (the text) and a query stream (the target tokens) [Yang et al. 2019].

B batch, T tokens, M memory tokens of the previous text, P target tokens, D width.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from anyformer.parts.attention.attention import Attention, AttentionModule
from anyformer.parts.embedding.permuted_text import Memories, TargetStream
from anyformer.parts.position.bias import AttentionPositionModule
from anyformer.runtime.context import Context, StackOutputs
from anyformer.runtime.taps import OutputCollector
from anyformer.runtime.visibility import Order
from anyformer.specs.field_types import Count
from anyformer.specs.part import Site, walk
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack, StackModule
from anyformer.stacks.sublayer import Sublayer


class TwoStreams(Stack, sees="itself", called=("two-stream attention", "XLNet")):
    """A Stack with a second stream of target tokens, computed with the same weights: targets attend to the text, and
    nothing attends to targets. Each layer also attends to its inputs for the previous text (memories), which get no
    gradient [Dai et al. 2019]."""

    requires: ClassVar[tuple[str, ...]] = ("an order",)

    kept: Count | None = None  # number of last tokens to keep as memories; default: all
    reused: Count | None = None  # keep only this many first tokens of a text, if the next text begins after them
    keeps: bool = True  # default of the input `use_mems` in evaluation
    keeps_training: bool = False  # default of the input `use_mems` in training

    def check(self) -> None:
        super().check()
        for name in ("order", "position", "neck", "layer_drop"):
            if getattr(self, name):
                raise ValueError(f"TwoStreams.{name} cannot be set, because every layer has its memory; leave it out")
        if self.reshapes:
            raise ValueError("TwoStreams.layers: layers cannot change the width or grid of the two streams")
        for path, part in walk(self.layers, "TwoStreams.layers"):
            if isinstance(part, Sublayer) and part.op.sees != "itself" and type(part.op) is not Attention:
                kind = type(part.op).__name__
                raise ValueError(f"{path}.op: {kind} cannot attend to a longer sequence; Attention can")
            if isinstance(part, Block):
                for name, step in list(part.steps.items())[1:]:
                    if step.sees != "itself":
                        reason = "memories are the input of a layer, so only its first step can be attention"
                        raise ValueError(f"{path}.{name}: {reason}")

    def check_inner(self, address: str) -> None:
        raise ValueError(f"{address}: TwoStreams must be the only stack of a model; use Stack")


class TwoStreamsModule(StackModule, of=TwoStreams):
    part: TwoStreams

    def __init__(self, part: TwoStreams, site: Site) -> None:
        super().__init__(part, site)
        plain = AttentionPositionModule
        for module in (m for m in self.modules() if isinstance(m, AttentionModule)):
            kind = plain if module.position is None else type(module.position)
            if kind.rotate is not plain.rotate or kind.source is not plain.source:
                reason = f"{type(module.part.position).__name__} changes queries and keys of one text together"
                raise ValueError(f"{module.address}.position: {reason}; use RelativeSinusoids")

    def forward(
        self, x: Tensor, ctx: Context, first: Context | None = None, states: list[Tensor] | None = None
    ) -> tuple[Tensor, Context]:
        targets, memories, states = ctx.extra(TargetStream), ctx.extra(Memories) or Memories(), []
        if targets is None and not memories.states:
            out, ctx = super().forward(x, ctx, None, states)
        else:
            out, ctx = self.run_both(x, ctx, targets, memories.states, states)
        usual = self.part.keeps_training if self.training else self.part.keeps
        if usual if memories.keep is None else memories.keep:
            before = memories.states or [None] * self.part.depth
            ctx = ctx.replace(StackOutputs({"mems": tuple(map(self.keep, states, before))}))
        return out, ctx

    def run_both(
        self, x: Tensor, ctx: Context, targets: TargetStream | None, past: tuple[Tensor, ...], states: list[Tensor]
    ) -> tuple[Tensor, Context]:
        """Run both streams. Append the text's input of each layer, and the output of the last one, to `states`."""
        x = ctx.tap(self.address, "input", x)
        states.append(x)
        g, target_ctx = None, ctx  # the target tokens and their context
        if targets is not None:
            g = ctx.tap(self.address, "input", targets.x)
            order = dataclasses.replace(ctx.extra(Order) or Order(), itself=False)
            target_ctx = ctx.replace(order, index=targets.places, shared={})
        for i, layer in enumerate(self.layers):
            seen = torch.cat((past[i].to(x.dtype), x), dim=1) if past else x
            x = ctx.tap(self.address, f"layers.{i}", layer(x, ctx.replace(key_states=seen) if past else ctx))
            if g is not None:
                g = ctx.tap(self.address, f"layers.{i}", layer(g, target_ctx.replace(key_states=seen)))
            states.append(x)
        if g is None:
            return self.finish(states, ctx)
        # the head reads only the target tokens, which have no padding
        index = torch.arange(g.shape[1], device=g.device)
        return self.finish(
            [states[0], g], ctx.replace(index=index, positions=index[None], is_token=None, documents=None)
        )

    def keep(self, read: Tensor, before: Tensor | None) -> Tensor:
        """Return the new memory (M, B, D) of a layer from its input for this text (B, T, D) and its old memory."""
        read = read[:, : self.part.reused]
        read = read if before is None else torch.cat((before.to(read.dtype), read), dim=1)
        return read[:, -(self.part.kept or 0) :].detach().transpose(0, 1)

    def collect_outputs(self, seen: OutputCollector) -> dict[str, list[Tensor]]:
        """With target tokens, return the states of both streams in turn, and a pair of attention weights per layer."""
        found, depth = seen.values_below(self.address), self.part.depth
        if len(states := found.get("hidden_states", [])) <= depth + 2:
            found = super().collect_outputs(seen)
        else:
            found["hidden_states"] = states[:-1]  # without the output of the stack
        if len(weights := found.get("attentions", [])) > depth:
            found["attentions"] = list(zip(weights[::2], weights[1::2], strict=True))  # type: ignore[arg-type]
        return found
