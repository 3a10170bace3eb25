"""torch.compile per block: equal layers share their compiled code, so compiling takes as long for 96 layers as for 2.

    compile_blocks(model)      # every layer of any family; code outside the layers is not compiled

Compiled code is used only in training. Without gradients, in a traced call or with a decoding state, blocks run
uncompiled. Parameters keep their addresses. Call it before `recompute`, which then recomputes with the compiled block.

The first calls are compared with uncompiled code, because compilers have bugs (kernels/cyclic_shift.py). Blocks whose
results differ run uncompiled, with a warning. With dropout every call differs, so nothing is compared.
"""

from __future__ import annotations

import contextlib
import functools
import types
import warnings
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported

from anyformer.parts.forward_override import ForwardOverride
from anyformer.runtime.context import Context
from anyformer.stacks.block import BlockModule
from anyformer.stacks.sublayer import SublayerModule

M = TypeVar("M", bound=nn.Module)

COMPARED = 3  # calls that are compared with uncompiled code, one per shape, dtype and training mode
MAX_ERROR = 0.1  # relative to the norm of the block's update of a token
SHARE = 0.75  # share of tokens that must be within MAX_ERROR: a router may choose different experts for a few


def compile_blocks(model: M) -> M:
    """Compile every outermost block at its first call. Changes the model in place and returns it."""
    kinds: dict[Hashable, CompiledBlock] = {}
    for block in outermost_blocks(model):
        kind = kinds.setdefault(structure(block), CompiledBlock(len(kinds)))
        block.forward = functools.partial(kind, block)  # type: ignore[method-assign]
    return model


class CompiledBlock:
    """The compiled code of all blocks of one structure.

    The layers of a stack share some values (`Context.once`: masks, rotary tables). If the first layer computed them,
    its graph would differ from the others. A separate graph therefore computes them; if that is not possible, every
    layer computes its own."""

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
            if not (error := self.error(block, x, ctx)) <= MAX_ERROR:  # True for NaN
                self.wrong = True
                warnings.warn(
                    f"{type(block).__name__}: compiled code differs from plain code by {error:.0%} of its output"
                    f" (torch {torch.__version__}); blocks of this kind run uncompiled",
                    stacklevel=2,
                )
                ctx.shared.clear()
                ctx.shared.update(kept)
                return run(block, x, ctx)
        block_ctx = ctx.replace(losses={})  # with a growing list, every layer would be compiled separately
        x = self.run_compiled(block, x, block_ctx)
        for name, losses in block_ctx.losses.items():
            ctx.losses.setdefault(name, []).extend(losses)
        return x

    def run_compiled(self, block: BlockModule, x: Tensor, ctx: Context) -> Tensor:
        return (self.run if self.prepare(block, x, ctx) else self.run_alone)(block, x, ctx)

    def prepare(self, block: BlockModule, x: Tensor, ctx: Context) -> bool:
        """Compute the values that blocks of this kind share, if possible. Returns whether the context has them."""
        if self.share is None or self.key in ctx.shared:
            return self.share is not None
        try:
            if has_statistics(block):  # a second pass would update the statistics twice
                self.share = None
            else:
                self.share(block, x.detach(), ctx)
                ctx.shared[self.key] = True
        except Unsupported:  # the compiler cannot return a context within a context
            self.share = None
        return self.share is not None

    def error(self, block: BlockModule, x: Tensor, ctx: Context) -> float:
        """Return the error of compiled code relative to the block's update of a token (its 0.75 quantile over tokens).
        Returns 0 if the block is random, as with dropout."""
        if has_statistics(block):  # more passes would update the statistics again
            return 0.0
        devices = [x.device] if x.is_cuda else []
        with torch.random.fork_rng(devices=devices), all_paths_kept(block):
            with torch.no_grad():
                plain, again = (run_alone(block, x, ctx.replace(losses={})) for _ in range(2))
            with torch.autograd.graph.saved_tensors_hooks(
                lambda t: t, lambda t: t
            ):  # disables the hooks of `recompute`
                compiled = self.run_compiled(block, x, ctx.replace(losses={})).detach()
        rounding = max(8 * torch.finfo(plain.dtype).eps, 1e-4)  # a block may add less than the rounding error
        plain, again, compiled = plain.float(), again.float(), compiled.float()
        added = (plain - x.detach() if plain.shape == x.shape else plain).norm(dim=-1)
        added = added.maximum(rounding * plain.norm(dim=-1)).clamp(min=1e-30)
        distances = (((other - plain).norm(dim=-1) / added).flatten() for other in (again, compiled))
        noise, error = (each.kthvalue(int(SHARE * (len(each) - 1)) + 1).values for each in distances)
        return float(torch.where(noise < MAX_ERROR / 10, error, 0.0))


def run(block: BlockModule, x: Tensor, ctx: Context) -> Tensor:
    return type(block).forward(block, x, ctx)


def run_alone(block: BlockModule, x: Tensor, ctx: Context) -> Tensor:
    return type(block).forward(block, x, ctx.replace(shared=dict(ctx.shared)))


def share(block: BlockModule, x: Tensor, ctx: Context) -> None:
    """Compute the shared values of the context. The compiler removes all other work, whose results are not used."""
    type(block).forward(block, x, ctx.replace(losses={}))


def own_code(function: Any, number: int, **options: Any) -> Callable[..., Any]:
    """Compile a copy of the function with its own code object: torch keeps few graphs per code object."""
    code = function.__code__.replace(co_name=f"{function.__name__}_{number}")
    return torch.compile(types.FunctionType(code, function.__globals__), **options)


@contextlib.contextmanager
def all_paths_kept(block: nn.Module) -> Iterator[None]:
    """Disable stochastic depth (`drop_path`) inside the block, without a new compilation."""
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
    """Return a key that is equal for blocks with the same compiled code (modules' numbers are constants in it)."""
    modules = tuple((name, *constants(module)) for name, module in block.named_modules())
    return modules, tuple((p.shape, p.dtype, p.requires_grad) for p in block.parameters())


def constants(module: nn.Module) -> Iterator[Hashable]:
    """Yield the class and the numbers of a module and of its override."""
    for part in (module, module.forward):
        if part is module or isinstance(part, ForwardOverride):
            yield cast("Hashable", type(part))
            yield from ((key, value) for key, value in vars(part).items() if isinstance(value, (int, float)))


def has_statistics(block: nn.Module) -> bool:
    """Whether the block has saved buffers, which a forward pass may change."""
    return len(block.state_dict(keep_vars=True)) > len(list(block.named_parameters(remove_duplicate=False)))
