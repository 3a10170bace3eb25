"""Blocks: named Sublayers, one after another or as parallel branches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from anyformer.parts.base import PartModule
from anyformer.runtime.context import Context
from anyformer.runtime.grid import with_stride
from anyformer.runtime.taps import TapNames
from anyformer.specs.messages import quote
from anyformer.specs.part import ANY, Part, Site, Table, walk
from anyformer.stacks.sublayer import Sublayer, SublayerModule, apply


class Steps(Part, abstract=True):
    """Named steps: `Block(attention=Sublayer(...), feedforward=Sublayer(...))`."""

    open_fields: ClassVar[bool] = True

    @classmethod
    def field_types(cls) -> dict[str, Any]:
        return {ANY: Sublayer | Steps}

    def __init__(self, **steps: Sublayer | Steps) -> None:
        for name, step in steps.items():
            if not name.isidentifier() or hasattr(nn.Module, name):
                raise ValueError(f"{type(self).__name__}: {quote(name)} cannot be the name of a step")
            if not isinstance(step, (Sublayer, Steps)):
                raise ValueError(f"{type(self).__name__}.{name}: expected a Sublayer or Parallel, got {quote(step)}")
        self.__dict__["steps"] = Table(steps)

    @property
    def steps(self) -> Table:
        """The steps by name."""
        return self.__dict__["steps"]

    def items(self) -> Iterator[tuple[str, Any]]:
        yield from self.steps.items()

    @property
    def reshapes(self) -> bool:
        return any(step.reshapes for step in self.steps.values())

    def out_width(self, width: int) -> int:
        for step in self.steps.values():
            width = step.out_width(width)
        return width

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Steps) and type(self) is type(other) and self.steps == other.steps

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.steps))


class Block(Steps, sees="itself", called=("layer",)):
    """Steps that run one after another."""

    streams: ClassVar[int] = 1  # residual streams, concatenated in the last dimension

    def __init__(self, **steps: Sublayer | Steps) -> None:
        super().__init__(**steps)
        for name, step in steps.items():
            if isinstance(step, Sublayer) and step.reads_block_input and self.reshapes:
                reads = f"{type(step).__name__} reads the Block's input"
                raise ValueError(f"Block.{name}: {reads}, so no step can change the width or grid")


class Parallel(Steps, sees="itself"):
    """Steps that all read the same input; their branches are all added to it (GPT-J, GPT-NeoX)."""

    def __init__(self, **steps: Sublayer | Steps) -> None:
        super().__init__(**steps)
        for name, step in steps.items():
            if not isinstance(step, Sublayer):
                raise ValueError(f"Parallel.{name}: expected a Sublayer, got a {type(step).__name__}")
            step.check_separable(f"Parallel.{name}")


class BlockModule(PartModule, of=Block):
    def __init__(self, part: Steps, site: Site) -> None:
        super().__init__()
        self.address, self.reshapes = site.address, part.reshapes
        steps = part.steps.items()
        self.readers = {name for name, step in steps if isinstance(step, Sublayer) and step.reads_block_input}
        width = site.width
        for name, step in part.items():
            self.add_module(name, step.build(site.child(name, width=width)))
            width = step.out_width(width)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        block_input = x
        for name, step in self._modules.items():  # faster than `children()`, which removes duplicates
            assert step is not None
            x = step(block_input, ctx, x) if name in self.readers else step(x, ctx)
            if self.reshapes:
                ctx = context_after(step, ctx)
        return x


def context_after(step: nn.Module, ctx: Context) -> Context:
    """Return the context after a step or a layer, which may have changed the grid."""
    if isinstance(step, SublayerModule):
        return with_stride(ctx, step.stride)
    for inner in step.children():
        ctx = context_after(inner, ctx)
    return ctx


class ParallelModule(BlockModule, of=Parallel):
    def __init__(self, part: Steps, site: Site) -> None:
        super().__init__(part, site)
        self.tapped: TapNames = dict.fromkeys(dict(part.items()))  # the branch of each step

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        y = x
        for name, step in self.named_children():
            assert isinstance(step, SublayerModule)
            if not step.is_skipped(ctx):
                y = apply(step.residual, ctx, y, ctx.tap(self.address, name, step.branch(x, ctx)))
        return y


def layer_sharing_of(layers: Block | Mapping[str, Block]) -> Any:
    """Return a mixer in `layers` that uses parameters of the first layer (Linformer, Luna), or None."""
    return next((part for _, part in walk(layers) if part.layer_sharing), None)
