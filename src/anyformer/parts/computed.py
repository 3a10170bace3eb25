"""Tensors that are computed, not learned."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.kernels.capture import can_read_values, graph_capture


class ComputesTensors(nn.Module):
    """A module with saved tensors that follow from the description."""

    def computed_tensors(self) -> dict[str, Callable[[], Tensor]]:
        """name -> value. Checkpoints may leave them out."""
        raise NotImplementedError


class Computed(nn.Module):
    """A tensor that is computed, not learned: it follows the model's device but never its dtype, and no checkpoint
    has it. On `meta` nothing is computed until the model moves to a real device."""

    silent = True  # nothing runs here: there is no output to trace
    value: Tensor

    def __init__(self, compute: Callable[[], Tensor]) -> None:
        super().__init__()
        self.compute = compute
        meta = torch.empty(0).device.type == "meta"
        self.register_buffer("value", torch.empty(0) if meta else compute(), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Computed:
        try:
            device = fn(self.value[:0]).device  # where the model is going
        except NotImplementedError:  # off meta
            device = fn(torch.empty(0, device="cpu")).device
        if device.type != "meta":
            with torch.device(device):
                self.value = self.compute() if self.value.device.type == "meta" else self.value.to(device)
        return self

    def forward(self) -> Tensor:
        return self.value


def cache_by_size(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of sizes and, last, a device, whose tensors serve every pass: made once, and the last few are kept.
    What is made while a run is recorded belongs to the recording, and is made anew."""

    @functools.lru_cache(maxsize=32)
    def once(*args: Any) -> Tensor:
        with torch.inference_mode(False):  # so that a later pass can train with them
            return make(*args)

    @functools.wraps(make)
    def get(*args: Any) -> Tensor:
        return make(*args) if not can_read_values() or is_watched(args[-1]) else once(*args)

    return get


def is_watched(device: torch.device) -> bool:
    """Whether someone else records, fakes or counts what runs: tensors made now may not outlive that."""
    watched = torch._C._len_torch_dispatch_stack() > 0
    return watched or (device.type == "cuda" and torch.cuda.is_current_stream_capturing())


@cache_by_size
def places(count: int, device: torch.device) -> Tensor:
    """(count,) 0, 1, 2, ...; nobody writes into it."""
    return torch.arange(count, device=device)


def compute(model: nn.Module) -> None:
    """What is computed, not learned, is there on meta too."""
    for module in model.modules():
        if isinstance(module, Computed) and not module.value.numel():
            with torch.device("meta"):
                module.value = module.compute()


@contextlib.contextmanager
def shapes_alone(model: nn.Module) -> Iterator[None]:
    """Here a model on `meta` can run: what is computed has a shape, and nobody asks for a value."""
    compute(model)
    with torch.device("meta"), graph_capture():
        yield
