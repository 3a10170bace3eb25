"""Hierarchical vision models: a sequence of Stacks, each on a coarser grid and a wider stream than the previous one."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from anyformer.parts.base import PartModule
from anyformer.parts.computed import places
from anyformer.parts.grid.merge import Down
from anyformer.parts.norm import Norm
from anyformer.runtime.context import Context
from anyformer.runtime.grid import Grid, as_image
from anyformer.runtime.taps import OutputCollector
from anyformer.specs.part import Site
from anyformer.stacks.backbone import Backbone
from anyformer.stacks.stack import Stack, StackModule


class Stages(Backbone, sees="all", called=("hierarchical vision transformer",)):
    """A sequence of Stacks, each on a coarser grid and a wider stream than the previous one (Swin, ResNet)."""

    requires: ClassVar[tuple[str, ...]] = ("a grid",)

    stages: tuple[Stack, ...]
    down: tuple[Down, ...]  # downsampling between stages, and optionally before the first
    norm: Norm | None = None
    # contents of the output `hidden_states`: the "inputs" of all stages and the last output, also as images; or the
    # outputs of all stages, only as "images"
    shows: Literal["inputs", "images"] = "inputs"

    def check(self) -> None:
        if len(self.down) not in (len(self.stages) - 1, len(self.stages)) or not self.stages:
            raise ValueError(
                f"Stages.down has {len(self.down)} steps; {len(self.stages)} stages need as many or one fewer"
            )
        for i, stage in enumerate(self.stages):
            stage.check_inner(f"Stages.stages.{i}")

    @property
    def first(self) -> int:
        """The first stage with a downsampling step before it."""
        return len(self.stages) - len(self.down)

    def out_width(self, width: int) -> int:
        for down in self.down:
            width = down.out_width(width)
        return width


class StagesModule(PartModule, of=Stages):
    stages: Any

    def __init__(self, part: Stages, site: Site) -> None:
        super().__init__()
        total, layer, width = sum(stage.depth for stage in part.stages), 0, site.width
        self.address, levels = site.address, range(len(part.stages) + 1)
        self.first, self.images = part.first, part.shows == "images"
        kinds = (None, "hidden_states") if self.images else ("hidden_states", "reshaped_hidden_states")
        self.tapped: dict[str, str | None] = {f"levels.{i}": kinds[0] for i in levels}
        self.tapped |= {f"images.{i}": kinds[1] for i in levels}
        self.stages, self.down = nn.ModuleList(), nn.ModuleList()
        for i, stage in enumerate(part.stages):
            if i >= part.first:
                step = i - part.first
                self.down.append(part.down[step].build(site.child(f"down.{step}", width=width)))
                width = part.down[step].out_width(width)
            self.stages.append(stage.build(site.child(f"stages.{i}", width=width, layer=layer, depth=total)))
            layer += stage.depth
        self.norm = part.norm.build(site.child("norm", width=width)) if part.norm else None

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Context]:
        grid = ctx.extra(Grid)
        assert grid is not None, "stages need tokens in a grid"
        if ctx.is_token is not None:
            raise ValueError("attention_mask cannot be used: neighbouring patches are merged; leave it out")
        if self.images:
            x = self.level(0, x, grid, ctx)
        for i, stage in enumerate(self.stages):
            if i >= self.first:
                x, grid = self.down[i - self.first](x, grid, ctx)
            if not self.images:
                x = self.level(i, x, grid, ctx)
            index = places(x.shape[1], x.device)
            ctx = ctx.replace(grid, index=index, positions=index[None], shared={})
            x, _ = stage(x, ctx)
            if self.images or i + 1 == len(self.stages):
                x = self.level(i + 1, x, grid, ctx)
        return self.normed_output(x), ctx

    @property
    def last_stack(self) -> StackModule:
        return self.stages[-1]

    def finish(self, states: list[Tensor], ctx: Context) -> tuple[Tensor, Context]:
        """Return the head's input from the states of the last stage."""
        x, ctx = self.last_stack.finish(states, ctx)
        return self.normed_output(x), ctx

    def normed_output(self, x: Tensor) -> Tensor:
        return x if self.norm is None else self.norm(x)

    def level(self, i: int, x: Tensor, grid: Grid, ctx: Context) -> Tensor:
        """Tap the stream between stages, also as an image (B, D, rows, columns)."""
        x = ctx.tap(self.address, f"levels.{i}", x)
        if ctx.wants(self.address, f"images.{i}"):
            ctx.tap(self.address, f"images.{i}", as_image(x, grid))
        return x

    def collect_outputs(self, seen: OutputCollector) -> dict[str, list[Tensor]]:
        """Return the stream between stages, and the other outputs of each stage's last layer."""
        found = seen.values_below(self.address, self.tapped)
        for stage in self.stages:
            for kind, values in stage.collect_outputs(seen).items():
                if kind != "hidden_states":
                    found.setdefault(kind, []).append(values[-1])
        return found
