"""Tensors that are computed, not learned."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.kernels.capture import can_read_values, graph_capture
from anyformer.parts.base import PartModule


class ComputesTensors(PartModule):
    """A module with saved tensors whose values follow from the description."""

    def computed_tensors(self) -> dict[str, Callable[[], Tensor]]:
        """Return name -> function that computes the tensor. Checkpoints may omit these tensors."""
        raise NotImplementedError


class Computed(nn.Module):
    """A tensor that is computed, not learned. It moves to the model's device, keeps its own dtype and is not saved. If
    it is created on `meta`, it is computed when the model moves to a real device."""

    silent = True  # there is no output to trace
    value: Tensor

    def __init__(self, compute: Callable[[], Tensor]) -> None:
        super().__init__()
        self.compute = compute
        meta = torch.empty(0).device.type == "meta"
        self.register_buffer("value", torch.empty(0) if meta else compute(), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Computed:
        try:
            device = fn(self.value[:0]).device  # the new device
        except NotImplementedError:  # `fn` cannot copy data from meta
            device = fn(torch.empty(0, device="cpu")).device
        if device.type != "meta":
            with torch.device(device):
                self.value = self.compute() if self.value.device.type == "meta" else self.value.to(device)
        return self

    def forward(self) -> Tensor:
        return self.value


def cache_by_size(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorator: cache the tensors that `make(*sizes, device)` returns. The cache is not used during a CUDA graph
    capture or inside a dispatch mode, because tensors that are created there may not outlive it."""

    @functools.lru_cache(maxsize=32)
    def once(*args: Any) -> Tensor:
        with torch.inference_mode(False):  # a later training pass may use the tensor
            return make(*args)

    @functools.wraps(make)
    def get(*args: Any) -> Tensor:
        return make(*args) if not can_read_values() or is_watched(args[-1]) else once(*args)

    return get


def is_watched(device: torch.device) -> bool:
    """Whether a dispatch mode is active or a CUDA graph is being captured: new tensors may not outlive them."""
    watched = torch._C._len_torch_dispatch_stack() > 0
    return watched or (device.type == "cuda" and torch.cuda.is_current_stream_capturing())


@cache_by_size
def places(count: int, device: torch.device) -> Tensor:
    """(count,) 0, 1, 2, ...; a cached tensor, which must not be modified."""
    return torch.arange(count, device=device)


def compute(model: nn.Module) -> None:
    """Give every `Computed` of a model on `meta` a tensor of its final shape."""
    for module in model.modules():
        if isinstance(module, Computed) and not module.value.numel():
            with torch.device("meta"):
                module.value = module.compute()


@contextlib.contextmanager
def run_on_meta(model: nn.Module) -> Iterator[None]:
    """Run a model on `meta` inside this context: every `Computed` gets a shape, and no value is read."""
    compute(model)
    with torch.device("meta"), graph_capture():
        yield
