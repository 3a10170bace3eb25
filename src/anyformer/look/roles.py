"""Find attention, routers, the residual stream and its steps in any model, from what its modules declare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anyformer.look.trace import Trace, trace
from anyformer.models import TransformerModule
from anyformer.parts.base import HasHeads, HasPart
from anyformer.stacks.block import BlockModule, ParallelModule
from anyformer.stacks.perceiver import PerceiverModule
from anyformer.stacks.stack import StackModule
from anyformer.stacks.sublayer import SublayerModule

WEIGHTS = ("attentions", "cross_attentions")  # model outputs that contain attention weights


def attention_mixers(model: TransformerModule) -> dict[str, str]:
    """Return the address of every mixer with attention weights -> "self" or "cross"."""
    outputs = {address: output for address, output in model.shows.items() if address.endswith(".weights")}
    return {
        address.removesuffix(".weights"): "cross" if output == "cross_attentions" else "self"
        for address, output in outputs.items()
        if output in WEIGHTS
    }


def routers(model: TransformerModule) -> list[str]:
    """Return the address of every router that sends tokens to experts."""
    return [address.removesuffix(".logits") for address, output in model.shows.items() if output == "router_logits"]


def body(model: TransformerModule) -> Any:
    """Return the module that the head reads: a stack, or a module with several stacks."""
    if model.spec.towers:
        raise ValueError("this model has two towers, each with its own stream: use model.text or model.image")
    names: Sequence[str] = model.spec.left_to_right or ("encoder",)
    if (module := getattr(model, names[-1], None)) is None:
        raise ValueError("this model has no stream of layers to read: it is an autoencoder")
    return module


def stream_end(whole: Any) -> str | None:
    """Return the address of the module between the stream of the last stack and the head, or None if the head reads the
    stream or a linear map of it. A second stream counts as one, because the steps of each stream read the other."""
    stack = whole.last_stack
    if stack.part.streams > 1:
        return f"{stack.address}: a second stream"
    between = whole.between if isinstance(whole, PerceiverModule) else None
    neck = stack.part.neck
    return between or (None if neck is None or neck.linear else f"{stack.address}.neck")


def num_heads(op: nn.Module) -> int | None:
    """Return the number of heads of a mixer, or None if it has no heads."""
    return op.part.num_heads if isinstance(op, HasPart) and isinstance(op.part, HasHeads) else None


def short(address: str) -> str:
    """Return a mixer's address without the `.op` of its sublayer."""
    return address.removesuffix(".op")


class StackStep(NamedTuple):
    """One residual step of a stack."""

    sublayer: SublayerModule
    time: int  # index of the pass, if layers run several times
    branch: str  # address of the value that it adds
    layer: str  # address of its layer


def last_stretch(stack: StackModule) -> tuple[str, tuple[int, ...]]:
    """Return the address after which the stream has its final width and grid, and the layers that run after it."""
    layers = stack.part.steps
    after = max((n for n, i in enumerate(layers, 1) if stack.part.layer(i).reshapes), default=0)
    return f"{stack.address}.{f'layers.{layers[after - 1]}' if after else 'input'}", layers[after:]


def steps(stack: StackModule, layers: Sequence[int] | None = None) -> Iterator[StackStep]:
    """Yield every residual step of a stack, or of `layers` only, in the order they run."""
    done: dict[int, int] = {}
    for i in stack.part.steps if layers is None else layers:
        time = done[i] = done.get(i, -1) + 1
        for sublayer, branch in sublayers(stack.layers[i]):
            yield StackStep(sublayer, time, branch, f"{stack.address}.layers.{i}")


def sublayers(block: nn.Module) -> Iterator[tuple[SublayerModule, str]]:
    """Yield the sublayers of a block and the addresses of the values they add: of the output in a Parallel, otherwise
    of `branch`."""
    for child in block.children():
        if isinstance(child, SublayerModule):
            yield child, child.address if isinstance(block, ParallelModule) else f"{child.address}.branch"
        elif isinstance(child, BlockModule):
            yield from sublayers(child)


def states(run: Trace, stack: StackModule) -> list[Tensor]:
    """Return the residual stream (B, T, D) before the first layer of the last stretch and after each step. If the whole
    stack ran several times, return its last run."""
    run = run.keeping(f"{stack.address}.input", f"{stack.address}.layers.*")
    times: dict[int, int] = {}
    first, layers = last_stretch(stack)
    stream = [run.kept[first][-1]]
    for i in layers:
        time = times[i] = times.get(i, -layers.count(i) - 1) + 1
        stream.append(run.kept[f"{stack.address}.layers.{i}"][time])
    return stream


class ModuleCall(NamedTuple):
    """The arguments and the result of one call of a module."""

    args: tuple[Any, ...]
    result: Any


def calls(run: Trace, modules: Sequence[nn.Module]) -> dict[nn.Module, list[ModuleCall]]:
    """Run the model again and return every call of these modules."""
    recorded: dict[nn.Module, list[ModuleCall]] = {module: [] for module in modules}

    def listen(module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        recorded[module].append(ModuleCall(args, result))

    handles = [module.register_forward_hook(listen) for module in modules]
    try:
        with torch.no_grad():
            trace(run.model, change=run.change, **run.inputs)
    finally:
        for handle in handles:
            handle.remove()
    return recorded
