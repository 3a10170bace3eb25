"""torch.compile by block: layers alike share one compiled code, so compiling takes as long for 96 layers as for 2.

    compile_blocks(model)      # every layer of any family; what is around the layers runs as before

A block is compiled where gradients are taken; without them, while something is looked at or while a state is kept, it
runs as before. Parameters keep their addresses. Use it before `recompute`, which then runs the compiled block again.

The first calls are compared with plain code, because compilers have bugs (kernels/cyclic_shift.py). Blocks whose code
differs then run uncompiled, with a warning. With dropout every call differs, so nothing is compared.
"""

from __future__ import annotations

import contextlib
import functools
import types
import warnings
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported

from anyformer.runtime.context import Context
from anyformer.stacks.block import BlockModule
from anyformer.stacks.sublayer import SublayerModule

COMPARED = 3  # kinds of calls (shape, precision, training or not) that are compared with plain code
FAR, SHARE = 0.1, 0.75  # of what a block adds to a token; of tokens: a router may send a few elsewhere


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
        self.compared: set[Hashable] = set()
        self.wrong = False

    def __call__(self, block: BlockModule, x: Tensor, ctx: Context) -> Tensor:
        if self.wrong or not torch.is_grad_enabled() or ctx.taps is not None or ctx.state is not None:
            return run(block, x, ctx)
        call = x.shape, x.dtype, torch.is_autocast_enabled(x.device.type), block.training
        if len(self.compared) < COMPARED and call not in self.compared:
            self.compared.add(call)
            kept = dict(ctx.shared)
            if not (error := self.error(block, x, ctx)) <= FAR:  # or no number at all
                self.wrong = True
                said = f"{type(block).__name__}: compiled code differs from plain code by {error:.0%} of what it adds"
                warnings.warn(f"{said} (torch {torch.__version__}); blocks of this kind run without it", stacklevel=2)
                ctx.shared.clear()
                ctx.shared.update(kept)
                return run(block, x, ctx)
        own = ctx.replace(losses={})  # a list that grows with every layer would make each of them another graph
        x = self.run_compiled(block, x, own)
        for name, losses in own.losses.items():
            ctx.losses.setdefault(name, []).extend(losses)
        return x

    def run_compiled(self, block: BlockModule, x: Tensor, ctx: Context) -> Tensor:
        return (self.run if self.prepare(block, x, ctx) else self.run_alone)(block, x, ctx)

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

    def error(self, block: BlockModule, x: Tensor, ctx: Context) -> float:
        """How far compiled code is from plain code, as a share of what the block adds to a token: three quarters of the
        tokens are nearer. 0 where chance has a part."""
        if has_statistics(block):  # more passes would count more often
            return 0.0
        devices = [x.device] if x.is_cuda else []
        with torch.random.fork_rng(devices=devices), all_paths_kept(block):
            with torch.no_grad():
                plain, again = (run_alone(block, x, ctx.replace(losses={})) for _ in range(2))
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):  # not those of `recompute`
                found = self.run_compiled(block, x, ctx.replace(losses={})).detach()
        rounding = max(8 * torch.finfo(plain.dtype).eps, 1e-4)  # a block may add less than is rounded off
        plain, again, found = plain.float(), again.float(), found.float()
        added = (plain - x.detach() if plain.shape == x.shape else plain).norm(dim=-1)
        added = added.maximum(rounding * plain.norm(dim=-1)).clamp(min=1e-30)
        distances = (((other - plain).norm(dim=-1) / added).flatten() for other in (again, found))
        chance, error = (each.kthvalue(int(SHARE * (len(each) - 1)) + 1).values for each in distances)
        return float(torch.where(chance < FAR / 10, error, 0.0))


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


@contextlib.contextmanager
def all_paths_kept(block: nn.Module) -> Iterator[None]:
    """Here no example loses a branch by chance (`drop_path`), and the code stays the same."""
    keeps = [m.keep_path for m in block.modules() if isinstance(m, SublayerModule) and m.keep_path is not None]
    before = [keep.value for keep in keeps]  # not filled in place: a backward pass may still read them
    for keep in keeps:
        keep.value = torch.ones_like(keep.value)
    try:
        yield
    finally:
        for keep, value in zip(keeps, before, strict=True):
            keep.value = value


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
