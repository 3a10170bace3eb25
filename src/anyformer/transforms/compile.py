"""torch.compile by block: layers alike share one compiled code, so compiling takes as long for 96 layers as for 2.

    compile_blocks(model)      # every layer of any family; what is around the layers runs as before

A block is compiled where gradients are taken; without them, while something is looked at or while a state is kept, it
runs as before. Parameters keep their addresses. Use it before `recompute`, which then runs the compiled block again.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported

from anyformer.runtime.context import Context
from anyformer.stacks.block import BlockModule


def compile_blocks(model: nn.Module) -> nn.Module:
    """Compiles every outermost block, at its first call; the model is changed and returned."""
    kinds: dict[Hashable, CompiledBlock] = {}
    for block in outermost_blocks(model):
        kind = kinds.setdefault(structure(block), CompiledBlock(len(kinds)))
        block.forward = functools.partial(kind, block)  # type: ignore[method-assign]
    return model


class CompiledBlock:
    """The compiled code of all blocks of one structure.

    What the layers of a stack share (`Context.once`: masks, rotary tables) is made by the first that asks. Compiled
    like this, the first layer would be another graph than the rest. So a graph of its own makes what is shared, and all
    layers find it there; where that is not possible, every layer makes its own.
    """

    def __init__(self, number: int) -> None:
        self.key = f"compiled {number}"
        self.share: Any = own_code(share, number, fullgraph=True)
        self.run, self.run_alone = own_code(run, number), own_code(run_alone, number)

    def __call__(self, block: BlockModule, x: Tensor, ctx: Context) -> Tensor:
        if not torch.is_grad_enabled() or ctx.taps is not None or ctx.state is not None:
            return run(block, x, ctx)
        own = ctx.replace(losses={})  # a list that grows with every layer would make each of them another graph
        x = (self.run if self.prepare(block, x, own) else self.run_alone)(block, x, own)
        for name, losses in own.losses.items():
            ctx.losses.setdefault(name, []).extend(losses)
        return x

    def prepare(self, block: BlockModule, x: Tensor, ctx: Context) -> bool:
        """Whether the context has what blocks of this kind share."""
        if self.share is None or self.key in ctx.shared:
            return self.share is not None
        try:
            if has_statistics(block):  # a second pass would count twice
                self.share = None
            else:
                self.share(block, x.detach(), ctx)
                ctx.shared[self.key] = True
        except Unsupported:  # the compiler cannot hand out what is shared: a context in a context
            self.share = None
        return self.share is not None


def run(block: BlockModule, x: Tensor, ctx: Context) -> Tensor:
    return type(block).forward(block, x, ctx)


def run_alone(block: BlockModule, x: Tensor, ctx: Context) -> Tensor:
    return type(block).forward(block, x, ctx.replace(shared=dict(ctx.shared)))


def share(block: BlockModule, x: Tensor, ctx: Context) -> None:
    """Leaves what is shared in the context. The compiler drops the rest: nobody reads it."""
    type(block).forward(block, x, ctx.replace(losses={}))


def own_code(function: Any, number: int, **options: Any) -> Callable[..., Any]:
    """The compiled function, with a code object of its own: torch keeps a limited number of graphs for each."""
    code = function.__code__.replace(co_name=f"{function.__name__}_{number}")
    return torch.compile(types.FunctionType(code, function.__globals__), **options)


def outermost_blocks(module: nn.Module) -> Iterator[BlockModule]:
    if isinstance(module, BlockModule):
        yield module
        return
    for child in module.children():
        yield from outermost_blocks(child)


def structure(block: nn.Module) -> Hashable:
    """Equal for blocks that compile to the same code: numbers in modules are constants there."""
    modules = tuple(
        (name, type(module), *((key, value) for key, value in vars(module).items() if isinstance(value, (int, float))))
        for name, module in block.named_modules()
    )
    return modules, tuple((p.shape, p.dtype, p.requires_grad) for p in block.parameters())


def has_statistics(block: nn.Module) -> bool:
    """Whether there are saved buffers, which a pass may change."""
    return len(block.state_dict(keep_vars=True)) > len(list(block.named_parameters(remove_duplicate=False)))
