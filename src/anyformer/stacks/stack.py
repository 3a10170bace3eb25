"""Stacks of Blocks: depth, layer patterns, shared layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.reversible import can_rewind, run_rewindable
from anyformer.parts.base import PartModule
from anyformer.parts.condition import AdaptiveNorm
from anyformer.parts.layer_mix import Neck
from anyformer.parts.norm import Norm
from anyformer.parts.op import Reshaping
from anyformer.parts.position.bias import AttentionPosition, HeadwisePosition
from anyformer.parts.residual import Add
from anyformer.runtime.context import Context
from anyformer.runtime.grid import Layout, strided_grid
from anyformer.runtime.taps import OutputCollector, TapNames
from anyformer.specs.field_types import Chance, Natural
from anyformer.specs.messages import nearest, quote
from anyformer.specs.part import Site, _edit, walk
from anyformer.stacks.backbone import Backbone
from anyformer.stacks.block import Block, context_after, layer_sharing_of
from anyformer.stacks.sublayer import Sublayer, apply


class Stack(Backbone, sees="itself"):
    """A sequence of `depth` Blocks. `layers` is one Block, or several named kinds in the order of `pattern`, repeated.

    A path can name one kind (`layers.local.attention`), all layers (`layers.attention`) or one (`layers.3.attention`).
    """

    layers: Block | Mapping[str, Block]
    depth: Natural
    pattern: tuple[str, ...] = ()
    order: tuple[int, ...] | None = None  # the layer that runs in each step: cross-layer parameter sharing (ALBERT)
    position: AttentionPosition | None = None  # one position bias shared by all layers (T5)
    norm: Norm | AdaptiveNorm | None = None  # after the last layer
    dropout: Chance = 0.0  # after the norm
    layer_drop: Chance = 0.0  # probability to skip a whole layer during training [Fan et al. 2020]
    # contents of the output `hidden_states`: the "inputs" or "outputs" of all layers, then the norm's output; the whole
    # "stream" (all inputs and the last output, without the norm; of two streams the one that was written last)
    shows: Literal["inputs", "outputs", "stream"] = "inputs"
    neck: Neck | None = None  # reads the hidden states before the head

    def check(self) -> None:
        if self.depth > 10_000:  # checked before allocating anything
            raise ValueError(f"Stack.depth is {self.depth:,}; at most 10,000 layers can be built")
        if isinstance(self.layers, Block) == bool(self.pattern):
            raise ValueError("Stack.pattern: set it if `layers` has several kinds, and leave it out for one Block")
        if self.order is not None and {*self.order} != {*range(self.depth)}:
            raise ValueError(f"Stack.order must contain each layer from 0 to {self.depth - 1} at least once")
        heads = self.position.num_heads if isinstance(self.position, HeadwisePosition) else None
        for path, op in ((path, part.op) for path, part in walk(self.layers, "layers") if isinstance(part, Sublayer)):
            if heads is not None and op.bias_heads not in (None, heads):
                raise ValueError(f"Stack.position has {heads} heads, but {path}.op has {op.bias_heads}")
        if self.position is not None:
            self.check_shared(self.position)
        kinds: Mapping[str, Block] = {} if isinstance(self.layers, Block) else self.layers
        for kind in self.pattern:
            if kind not in kinds:
                raise ValueError(f"Stack.pattern: no kind of layer {quote(kind)}; {nearest(kind, kinds)}")
        if len({block.streams for block in kinds.values()}) > 1:
            raise ValueError("Stack.layers: only some layers are Reversible; make all of them Reversible, or none")
        if self.reshapes and self.neck is not None and self.neck.every_layer:
            raise ValueError("Stack.neck reads the states of all layers, so no layer can change the width or grid")
        for name in ("order", "layer_drop", "position") if self.reshapes else ():
            if getattr(self, name):
                raise ValueError(f"Stack.{name}: leave it out, because layers of this stack change the width or grid")
        led = {kind: part for kind, block in kinds.items() if (part := layer_sharing_of(block)) is not None}
        if led and self.pattern and self.pattern[0] not in led:
            kind, part = next(iter(led.items()))
            missing = f"layers share parameters of the first layer ({self.pattern[0]}), which does not have them"
            raise ValueError(f"Stack.layers.{kind}: {missing}; set {part.layer_sharing.off}")
        part = layer_sharing_of(self.layers)
        for kind, other in led.items():
            if (form := led[self.pattern[0]].layer_sharing.form) != other.layer_sharing.form:
                off = other.layer_sharing.off
                raise ValueError(f"Stack.layers.{kind}: the first layer shares parameters of {form}; set {off}")
        for name in () if part is None else part.layer_sharing.conflicts:
            if getattr(self, name):
                fix = f"leave it out or set {part.layer_sharing.off}"
                raise ValueError(f"Stack.{name}: layers of this stack share parameters of earlier ones; {fix}")

    def check_shared(self, position: AttentionPosition) -> None:
        """Raise ValueError unless the shared position bias is usable by all layers and used by at least one."""
        if not position.can_share:
            kind = type(position).__name__
            raise ValueError(f"Stack.position: layers cannot share {kind}; set it in each Attention, or share Alibi")
        used = {id(layer): layer for layer in map(self.layer, range(self.depth))}.values()
        steps = (part for layer in used for _, part in walk(layer) if isinstance(part, Sublayer))
        if not any(step.op.bias_heads for step in steps):
            raise ValueError(
                "Stack.position is a bias of attention scores, but no layer has Attention; set position=None"
            )

    def check_inner(self, address: str) -> None:
        """Raise ValueError unless this stack keeps the shape of the stream, so that another one can follow."""
        if self.neck is not None or self.reshapes or self.streams > 1:
            kinds = "neck, Reversible layers or layers that change the width or grid"
            raise ValueError(f"{address}: a Stack that is followed by another one cannot have {kinds}")
        if (part := layer_sharing_of(self.layers)) is not None:
            raise ValueError(
                f"{address}: layers of different Stacks cannot share parameters; set {part.layer_sharing.off}"
            )

    @property
    def reshapes(self) -> bool:
        """Whether a layer changes the stream's width or grid."""
        return any(self.layer(i).reshapes for i in range(min(self.depth, len(self.pattern) or 1)))

    @property
    def streams(self) -> int:
        """The number of residual streams; each starts as the input of the stack."""
        return (self.layers if isinstance(self.layers, Block) else next(iter(self.layers.values()), Block())).streams

    def widths(self, width: int) -> list[int]:
        """Widths of the stream before each layer and after the last."""
        found = [width * self.streams]
        for layer in map(self.layer, range(self.depth)):
            found.append(layer.out_width(found[-1]))
        return found

    def coarser(self, grid: Layout) -> Layout:
        """The grid after the last layer."""
        for layer in map(self.layer, range(self.depth)):
            for step in layer.steps.values():
                if isinstance(step, Sublayer) and isinstance(step.op, Reshaping):
                    grid = strided_grid(grid, step.op.stride)
        return grid

    def out_width(self, width: int) -> int:
        width = self.widths(width)[-1]
        return width if self.neck is None else self.neck.out_width(width)

    @property
    def steps(self) -> tuple[int, ...]:
        """The layer numbers in the order of their runs."""
        return tuple(range(self.depth)) if self.order is None else self.order

    def layer(self, i: int) -> Block:
        """The description of layer i."""
        if isinstance(self.layers, Block):
            return self.layers
        return self.layers[self.pattern[i % len(self.pattern)]]

    def edit(self, steps: tuple[str, ...], change: Callable[[Any], Any]) -> Any:
        if steps[0] == "layers" and len(steps) > 1 and steps[1].isdecimal():
            i = int(steps[1])
            if i >= self.depth:
                raise KeyError(f"no layer {i}; there are {self.depth}")
            old = self.layer(i)
            new = _edit(old, steps[2:], change)
            return self if new is old else self._with_layer(i, new)
        kinds = self.layers if isinstance(self.layers, Mapping) else {}
        if steps[0] == "layers" and len(steps) > 1 and steps[1] not in kinds:  # a step that all layers have
            having = [name for name, block in kinds.items() if steps[1] in dict(block.items())]
            edited = {name: kinds[name].edit(steps[1:], change) for name in having}
            if edited:
                return self.replace(layers={**kinds, **edited})
        return super().edit(steps, change)

    def _with_layer(self, i: int, block: Block) -> Stack:
        """Return a copy with only layer i replaced and the whole pattern written out."""
        kinds = dict(self.layers) if isinstance(self.layers, Mapping) else {"layer": self.layers}
        pattern = [self.pattern[j % len(self.pattern)] if self.pattern else "layer" for j in range(self.depth)]
        if pattern.count(pattern[i]) > 1:  # otherwise only layer i has this kind
            pattern[i] = f"{pattern[i]}_{i}"
            while pattern[i] in kinds:
                pattern[i] += "_"
        kinds[pattern[i]] = block
        return self.replace(layers=kinds, pattern=tuple(pattern))

    @classmethod
    def upgrade(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Earlier versions had fields for step vectors, for an output projection and for the states of Reformer."""
        if data.pop("timed", False):
            data["kind"] = "TimedStack"
        if (width := data.pop("project", None)) is not None:
            if data.get("neck") is not None:
                raise ValueError("Stack.project cannot be used with a neck; leave one of them out")
            data["neck"] = {"kind": "OutputProjection", "width": width}
        if data.get("shows") == "last":
            data["shows"] = "stream"
        return data


class StackModule(PartModule, of=Stack):
    def __init__(self, part: Stack, site: Site) -> None:
        super().__init__()
        self.part, self.address = part, site.address
        self.steps, self.reshapes = part.steps, part.reshapes  # read in every forward pass
        names = ("input", *(f"layers.{i}" for i in range(part.depth)), "normed")
        self.tapped: TapNames = dict.fromkeys(names, "hidden_states")
        first, total = site.layer, max(site.depth, part.depth)  # a stage continues the count of earlier stages
        widths = part.widths(site.width)
        self.layers = nn.ModuleList(
            site.child(f"layers.{i}", width=widths[i], layer=first + i, depth=total).layer_of(part.layer(i))
            for i in range(part.depth)
        )
        self.position = part.position.build(site.child("position")) if part.position else None
        self.norm = part.norm.build(site.child("norm", width=widths[-1])) if part.norm else None
        # whether the stream is fp32 inside this stack
        self.fp32_stream = any(isinstance(p, Add) and p.float32 for _, p in walk(part.layers))
        after = site.child("neck", width=widths[-1], depth=len(part.steps))
        self.neck = part.neck.build(after) if part.neck else None

    def forward(
        self, x: Tensor, ctx: Context, first: Context | None = None, states: list[Tensor] | None = None
    ) -> tuple[Tensor, Context]:
        """Run the layers. `first`: the context of the first step, if it differs from `ctx`. `states`: a list to
        which the input and the output of each step are appended."""
        if self.position is not None:
            ctx = ctx.replace(bias=self.position(*ctx.relative_positions()).to(x.dtype))
        if self.part.streams > 1:
            x = x.repeat(1, 1, self.part.streams)
        x = ctx.tap(self.address, "input", x)
        states = [] if states is None else states
        states.append(x)
        if self.rewinds(x, ctx):
            layers: list[Any] = [self.layers[i] for i in self.steps]
            states.append(run_rewindable(layers, x, ctx))
            return self.finish(states, ctx)
        layers, drop = [*self.layers], self.part.layer_drop if self.training else 0.0
        for step, i in enumerate(self.steps):
            layer = layers[i]
            x = self.step_input(x, step)
            if not (drop and torch.rand(()) < drop):
                x = layer(x, ctx if step or first is None else first)
            if self.reshapes:
                ctx = context_after(layer, ctx)
            if ctx.taps is not None:
                x = ctx.tap(self.address, f"layers.{i}", x)
            states.append(x)
        return self.finish(states, ctx)

    def step_input(self, x: Tensor, step: int) -> Tensor:
        """Return the input of the layer that runs in this step."""
        return x

    def rewinds(self, x: Tensor, ctx: Context) -> bool:
        """Whether the backward pass recomputes the inputs of layers instead of storing them: during training, if all
        layers are reversible and nothing else needs their states."""
        part = self.part
        if part.streams == 1 or not self.training or not part.depth or part.layer_drop:
            return False
        if ctx.taps is not None or ctx.state is not None or (part.neck is not None and part.neck.every_layer):
            return False
        independent = not any(p.routes or p.layer_sharing for _, p in walk(part))
        return independent and can_rewind(x, ctx, self.layers)

    @property
    def last_stack(self) -> StackModule:
        """The stack whose output the head reads."""
        return self

    def finish(self, states: list[Tensor], ctx: Context) -> tuple[Tensor, Context]:
        """Return the head's input from the stream's `states` (the stack's input first); a neck may read all of them."""
        x = states[-1]
        if self.fp32_stream:
            x = x.to(states[0].dtype)
        if self.norm is not None:
            x = apply(self.norm, ctx, x)
        if self.training and self.part.dropout:
            x = F.dropout(x, self.part.dropout)
        x = ctx.tap(self.address, "normed", x)
        every = self.part.neck is not None and self.part.neck.every_layer
        return (x, ctx) if self.neck is None else self.neck([*states[: -1 if every else 0], x], ctx)

    def collect_outputs(self, seen: OutputCollector) -> dict[str, list[Tensor]]:
        """Return the output fields that published classes return for this stack."""
        found = seen.values_below(self.address)
        if states := found.get("hidden_states"):  # the input, each layer, the norm's output, and the neck's
            last, end = len(self.part.steps) + 1, states[-1:]
            stream = [state.chunk(self.part.streams, -1)[-1] for state in states[:last]]
            kinds = {"inputs": states[: last - 1] + end, "outputs": states[1:last] + end, "stream": stream}
            found["hidden_states"] = kinds[self.part.shows]
        return found
