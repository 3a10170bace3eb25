"""Where in a model things are that every family has: by what its modules declare, never by a family's name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anyformer.look.trace import Trace, trace
from anyformer.models import TransformerModule
from anyformer.parts.base import HasHeads
from anyformer.stacks.block import BlockModule, ParallelModule
from anyformer.stacks.perceiver import PerceiverModule
from anyformer.stacks.stack import StackModule
from anyformer.stacks.sublayer import SublayerModule

WEIGHTS = ("attentions", "cross_attentions")  # as which outputs the weights of mixers are shown


def attention_mixers(model: TransformerModule) -> dict[str, str]:
    """The address of every mixer that has attention weights -> "self" or "cross"."""
    found = {address: shown for address, shown in model.shows.items() if address.endswith(".weights")}
    return {
        address.removesuffix(".weights"): "cross" if shown == "cross_attentions" else "self"
        for address, shown in found.items()
        if shown in WEIGHTS
    }


def routers(model: TransformerModule) -> list[str]:
    """The address of every router that sends tokens to experts."""
    return [address.removesuffix(".logits") for address, shown in model.shows.items() if shown == "router_logits"]


def body(model: TransformerModule) -> Any:
    """The stack, or what has several, that the head reads."""
    if model.spec.towers:
        raise ValueError("this model has two towers, each with a stream of its own: look at model.text or model.image")
    names: Sequence[str] = model.spec.left_to_right or ("encoder",)
    if (found := getattr(model, names[-1], None)) is None:
        raise ValueError("this model has no stream of layers that could be read on the way: it is an autoencoder")
    return found


def stream_end(whole: Any) -> str | None:
    """The address of what stands between the stream of the last stack and the head, where something does; of two
    streams each goes through the other's steps."""
    stack = whole.last_stack
    if stack.part.streams > 1:
        return f"{stack.address}: a second stream"
    between = whole.between if isinstance(whole, PerceiverModule) else None
    return between or (None if stack.part.neck is None else f"{stack.address}.neck")


def num_heads(op: nn.Module) -> int | None:
    """The number of heads of a mixer; None: it has no heads."""
    part = getattr(op, "part", None)
    return part.num_heads if isinstance(part, HasHeads) else None


def short(address: str) -> str:
    """A mixer's address as people say it: without the op of its sublayer."""
    return address.removesuffix(".op")


class StackStep(NamedTuple):
    """One residual step of a stack, in the order they run."""

    sublayer: SublayerModule
    time: int  # 0 for its first run, where layers run more than once
    branch: str  # the address of what it adds
    layer: str  # the address of its layer


def last_stretch(stack: StackModule) -> tuple[str, tuple[int, ...]]:
    """Where the stream gets the width and grid that a head reads, and the layers that run from there on."""
    layers = stack.part.steps
    after = max((n for n, i in enumerate(layers, 1) if stack.part.layer(i).reshapes), default=0)
    return f"{stack.address}.{f'layers.{layers[after - 1]}' if after else 'input'}", layers[after:]


def steps(stack: StackModule, layers: Sequence[int] | None = None) -> Iterator[StackStep]:
    """Every residual step of a stack as it runs, or of these layers of it."""
    done: dict[int, int] = {}
    for i in stack.part.steps if layers is None else layers:
        time = done[i] = done.get(i, -1) + 1
        for sublayer, branch in sublayers(stack.layers[i]):
            yield StackStep(sublayer, time, branch, f"{stack.address}.layers.{i}")


def sublayers(block: nn.Module) -> Iterator[tuple[SublayerModule, str]]:
    """Those of a block in order, and the addresses of what they add: of steps side by side their own."""
    for child in block.children():
        if isinstance(child, SublayerModule):
            yield child, child.address if isinstance(block, ParallelModule) else f"{child.address}.branch"
        elif isinstance(child, BlockModule):
            yield from sublayers(child)


def states(run: Trace, stack: StackModule) -> list[Tensor]:
    """The residual stream (B, T, D) before the first layer of the last stretch and after each step, of the last time
    where the whole stack ran several times."""
    run = run.keeping(f"{stack.address}.input", f"{stack.address}.layers.*")
    times: dict[int, int] = {}
    first, layers = last_stretch(stack)
    found = [run.kept[first][-1]]
    for i in layers:
        time = times[i] = times.get(i, -layers.count(i) - 1) + 1
        found.append(run.kept[f"{stack.address}.layers.{i}"][time])
    return found


class ModuleCall(NamedTuple):
    """What a module was given and what it made of it."""

    args: tuple[Any, ...]
    result: Any


def calls(run: Trace, modules: Sequence[nn.Module]) -> dict[nn.Module, list[ModuleCall]]:
    """How these modules were called in this run, by running it once more."""
    found: dict[nn.Module, list[ModuleCall]] = {module: [] for module in modules}

    def listen(module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        found[module].append(ModuleCall(args, result))

    handles = [module.register_forward_hook(listen) for module in modules]
    try:
        with torch.no_grad():
            trace(run.model, change=run.change, **run.inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found
