"""What a training step holds while it runs: forward and backward on the meta device, where a tensor is a shape and
costs nothing, and the bytes of all that live added up as they come and go.

It is the step that `anyformer train` does on a CUDA device: projections joined, products in half precision under
autocast, attention that keeps no weights, a language model's loss by chunks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from anyformer.counting.simulated_gpu import Device
from anyformer.kernels.capture import graph_capture
from anyformer.models.base import TransformerModule
from anyformer.models.call import Call
from anyformer.parts.computed import compute
from anyformer.parts.head.language import LMHeadModule
from anyformer.stacks.stack import StackModule
from anyformer.transforms.fuse import fuse


@dataclasses.dataclass(frozen=True)
class StepMemory:
    """Bytes beside those of the weights and of the optimiser's moments."""

    kept: int  # at the end of the forward pass, for the backward pass; not gradients that a loss has made with itself
    copies: int  # of these, of weights in half precision
    most: int  # at any time: as activations go, gradients come


def run_step(
    model: TransformerModule, inputs: dict[str, Tensor], half: torch.dtype | None = None, recompute: bool = False
) -> StepMemory:
    """A step of a model on meta; with `recompute` a layer's activations are computed again in the backward pass."""
    compute(model)
    fuse(model.train(), training=True)
    device, live = Device(model, half), Live((*model.parameters(), *model.buffers()))
    for module in model.modules():
        if isinstance(module, LMHeadModule) and type(module).cross_entropy is LMHeadModule.cross_entropy:
            module.scores = functools.partial(device.loss, module, model.spec.pair)  # type: ignore[method-assign]
        for layer in module.layers if recompute and isinstance(module, StackModule) else ():
            layer.forward = functools.partial(_recompute_layer, device, type(layer).forward, layer)
    with torch.device("meta"), graph_capture(), live:
        given = tree_map(torch.empty_like, inputs)
        with device:
            said = model(Call(given))
            total = sum(v.float().sum() for v in tree_iter(dict(said)) if isinstance(v, Tensor) and v.requires_grad)
            del said
            device.forget()
            kept, copies = live.now - device.gradient_bytes, sum(device.casts.values())
            if isinstance(total, Tensor):
                total.backward()
    return StepMemory(kept, copies, live.most)


class Live(TorchDispatchMode):
    """The bytes of all storages that were made while this is on and are still there, and the most that were."""

    def __init__(self, before: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in before}
        self.sizes: dict[int, int] = {}  # memory by its number, which is its own while it lives
        self.now = self.most = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler to leave this out of it (seconds)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, Tensor):
                self.add(value)
        return out

    def add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.sizes and key not in self.known:
            self.sizes[key] = storage.nbytes()
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self.release, key).atexit = False

    def release(self, key: int) -> None:
        self.now -= self.sizes.pop(key, 0)


def _recompute_layer(device: Device, forward: Any, layer: nn.Module, x: Tensor, ctx: Any) -> Any:
    """A layer of which the inputs alone are kept: what the backward pass asks for is made when it does, up to the last
    that it needs."""
    made: dict[int, Tensor] = {}
    number = 0  # of tensors that would be kept

    def leave_out(tensor: Tensor) -> int:
        nonlocal number
        number += 1
        return number - 1

    def note(tensor: Tensor) -> None:
        made[len(made)] = tensor
        if len(made) == number:
            raise _Enough

    def make(which: int) -> Tensor:
        if not made:
            noting = torch.autograd.graph.saved_tensors_hooks(note, lambda nothing: nothing)
            # modes that backward() has turned off
            with contextlib.suppress(_Enough), torch.enable_grad(), torch.device("meta"), device, noting:
                forward(layer, x.detach().requires_grad_(), ctx.replace(losses={}))
        return made.pop(which)

    with torch.autograd.graph.saved_tensors_hooks(leave_out, make):
        return forward(layer, x, ctx)


class _Enough(Exception):
    pass
