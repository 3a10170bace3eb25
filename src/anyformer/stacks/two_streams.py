"""Two streams through one stack: that of the text, and that of the tokens that are asked for [Yang et al. 2019].

B batch, T tokens, M tokens kept of the text before, P tokens asked for, D width.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.parts.attention.attention import Attention, AttentionModule
from anyformer.parts.embedding.permuted_text import Memories, TargetStream
from anyformer.parts.position.bias import AttentionPositionModule
from anyformer.runtime.context import Context, StackOutputs
from anyformer.runtime.mask import Order
from anyformer.runtime.taps import OutputCollector
from anyformer.specs.checks import at_least
from anyformer.specs.part import Site, walk
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack, StackModule
from anyformer.stacks.sublayer import Sublayer


class TwoStreams(Stack, sees="itself", called=("two-stream attention", "XLNet")):
    """A Stack whose layers also read what they kept of the text before [Dai et al. 2019], and, once more with the same
    weights, the tokens that are asked for: these look at the text as it was before the layer, and nothing looks at
    them. No gradient goes into what is kept."""

    requires: ClassVar[tuple[str, ...]] = ("an order",)

    kept: int | None = None  # number of last tokens to keep; default: all
    reused: int | None = None  # only the first tokens of a text are, where the next one begins after them
    keeps: bool = True  # whether something is kept where nobody says so (`use_mems`)
    keeps_training: bool = False

    def check(self) -> None:
        super().check()
        at_least(self, 1, "kept", "reused")
        for name in ("order", "position", "neck", "project", "timed", "layer_drop"):
            if getattr(self, name):
                raise ValueError(f"TwoStreams.{name}: what is kept is of each layer in turn; leave it out")
        if self.reshapes:
            raise ValueError("TwoStreams.layers: both streams have one width and no grid")
        for path, part in walk(self.layers, "TwoStreams.layers"):
            if isinstance(part, Sublayer) and part.op.sees != "itself" and type(part.op) is not Attention:
                kind = type(part.op).__name__
                raise ValueError(f"{path}.op: {kind} cannot look at a longer sequence; Attention can")
            if isinstance(part, Block):
                for name, step in list(part.steps.items())[1:]:
                    if step.sees != "itself":
                        line = "what is kept is what a layer reads, so it can only look first"
                        raise ValueError(f"{path}.{name}: {line}")

    def check_inner(self, address: str) -> None:
        raise ValueError(f"{address}: TwoStreams is a model's only stack, and others follow this one; Stack fits")

    def build(self, site: Site) -> nn.Module:
        return TwoStreamsModule(self, site)


class TwoStreamsModule(StackModule):
    part: TwoStreams

    def __init__(self, part: TwoStreams, site: Site) -> None:
        super().__init__(part, site)
        plain = AttentionPositionModule
        for module in (m for m in self.modules() if isinstance(m, AttentionModule)):
            kind = plain if module.position is None else type(module.position)
            if kind.rotate is not plain.rotate or kind.source is not plain.source:
                line = f"{type(module.part.position).__name__} turns queries and keys of one text together"
                raise ValueError(f"{module.address}.position: {line}; RelativeSinusoids does not")

    def forward(
        self, x: Tensor, ctx: Context, first: Context | None = None, states: list[Tensor] | None = None
    ) -> tuple[Tensor, Context]:
        asked, recalled, states = ctx.extra(TargetStream), ctx.extra(Memories) or Memories(), []
        if asked is None and not recalled.states:
            out, ctx = super().forward(x, ctx, None, states)
        else:
            out, ctx = self.run_both(x, ctx, asked, recalled.states, states)
        usual = self.part.keeps_training if self.training else self.part.keeps
        if usual if recalled.keep is None else recalled.keep:
            before = recalled.states or [None] * self.part.depth
            ctx = ctx.replace(StackOutputs({"mems": tuple(map(self.keep, states, before))}))
        return out, ctx

    def run_both(
        self, x: Tensor, ctx: Context, asked: TargetStream | None, past: tuple[Tensor, ...], states: list[Tensor]
    ) -> tuple[Tensor, Context]:
        """What a layer reads of the text is put into `states`, and after the last what it gave."""
        x = ctx.tap(self.address, "input", x)
        states.append(x)
        g, beside = None, ctx  # the tokens asked for, and what they see
        if asked is not None:
            g = ctx.tap(self.address, "input", asked.x)
            order = dataclasses.replace(ctx.extra(Order) or Order(), itself=False)
            beside = ctx.replace(order, index=asked.places, shared={})
        for i, layer in enumerate(self.layers):
            seen = torch.cat((past[i].to(x.dtype), x), dim=1) if past else x
            x = ctx.tap(self.address, f"layers.{i}", layer(x, ctx.replace(key_states=seen) if past else ctx))
            if g is not None:
                g = ctx.tap(self.address, f"layers.{i}", layer(g, beside.replace(key_states=seen)))
            states.append(x)
        if g is None:
            return self.finish(states, ctx)
        # what a head reads are the tokens asked for: a row of their own, none of them a pad
        index = torch.arange(g.shape[1], device=g.device)
        return self.finish(
            [states[0], g], ctx.replace(index=index, positions=index[None], is_token=None, documents=None)
        )

    def keep(self, read: Tensor, before: Tensor | None) -> Tensor:
        """(M, B, D) of what a layer read of this text (B, T, D), and of those before it."""
        read = read[:, : self.part.reused]
        read = read if before is None else torch.cat((before.to(read.dtype), read), dim=1)
        return read[:, -(self.part.kept or 0) :].detach().transpose(0, 1)

    def collect_outputs(self, seen: OutputCollector) -> dict[str, list[Tensor]]:
        """Where tokens were asked for, both streams in turn, and the weights of both for each layer."""
        found, depth = seen.values_below(self.address), self.part.depth
        if len(states := found.get("hidden_states", [])) <= depth + 2:
            found = super().collect_outputs(seen)
        else:
            found["hidden_states"] = states[:-1]  # but what left the stack
        if len(weights := found.get("attentions", [])) > depth:
            found["attentions"] = list(zip(weights[::2], weights[1::2], strict=True))  # type: ignore[arg-type]
        return found
