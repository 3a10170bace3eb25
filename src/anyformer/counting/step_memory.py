"""Memory of a training step: forward and backward run on the meta device, where tensors have shapes but no data, and
the bytes of live tensors are added up.

It is the step of `anyformer train` on a CUDA device: fused projections, products in half precision under autocast,
attention that does not store its weights, and a language-model loss in chunks.
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
    """Bytes in addition to the weights and the optimizer's moments."""

    kept: int  # at the end of the forward pass, without gradients that the loss has computed already
    copies: int  # of these, half-precision copies of weights
    most: int  # peak of the whole step


def run_step(
    model: TransformerModule, inputs: dict[str, Tensor], half: torch.dtype | None = None, recompute: bool = False
) -> StepMemory:
    """Measure a step of a model on the meta device; `recompute`: with activation checkpointing of every layer."""
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
            outputs = model(Call(given))
            total = sum(v.float().sum() for v in tree_iter(dict(outputs)) if isinstance(v, Tensor) and v.requires_grad)
            del outputs
            device.forget()
            kept, copies = live.now - device.gradient_bytes, sum(device.casts.values())
            if isinstance(total, Tensor):
                total.backward()
    return StepMemory(kept, copies, live.most)


class Live(TorchDispatchMode):
    """Tracks the bytes of all live storages that were allocated in this mode (`now`), and their peak (`most`)."""

    def __init__(self, before: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in before}
        self.sizes: dict[int, int] = {}  # bytes of live storages, by address
        self.now = self.most = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would make torch import its compiler, which takes seconds

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
    """Run a layer that keeps only its inputs. The backward pass recomputes the saved tensors, up to the last one."""
    made: dict[int, Tensor] = {}
    number = 0  # of tensors that autograd would save

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
            # backward() turns these modes off
            with contextlib.suppress(_Enough), torch.enable_grad(), torch.device("meta"), device, noting:
                forward(layer, x.detach().requires_grad_(), ctx.replace(losses={}))
        return made.pop(which)

    with torch.autograd.graph.saved_tensors_hooks(leave_out, make):
        return forward(layer, x, ctx)


class _Enough(Exception):
    pass
