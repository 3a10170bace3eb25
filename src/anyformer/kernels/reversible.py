"""Reversible layers: the backward pass recomputes all states from the last one, the only one kept [Gomez et al.
2017]."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from anyformer.kernels.capture import can_read_values


class RewindableLayer(Protocol):
    """A layer whose input can be computed from its output. With a list in `step_starts`, a call appends to it."""

    step_starts: list[StepStart] | None

    def __call__(self, x: Tensor, ctx: Any) -> Tensor: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def rewind(
        self, y: Tensor, gradient: Tensor, ctx: Any, starts: list[StepStart], found: Gradients
    ) -> tuple[Tensor, Tensor]:
        """Return the input that gave y, and its gradient from y's; add the gradients of parameters to `found`."""


class Gradients:
    """Sums of gradients, by parameter."""

    def __init__(self) -> None:
        self.by_id: dict[int, Tensor] = {}

    def add(self, parameters: Sequence[Tensor], gradients: Iterable[Tensor | None]) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                before = self.by_id.get(id(parameter))
                self.by_id[id(parameter)] = gradient if before is None else before + gradient


@dataclasses.dataclass(frozen=True)
class StepStart:
    """The state before a step, which repeats it: torch's random generators, for dropout, and shared tensors."""

    cpu: Tensor
    device: Tensor | None  # state of the GPU's generator
    shared: dict[str, Any]

    @classmethod
    def save(cls, x: Tensor, shared: dict[str, Any]) -> StepStart:
        device = torch.cuda.get_rng_state(x.device) if x.is_cuda else None
        return cls(torch.get_rng_state(), device, {**shared})

    @contextlib.contextmanager
    def restore_random(self, x: Tensor) -> Iterator[None]:
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            torch.set_rng_state(self.cpu)
            if self.device is not None:
                torch.cuda.set_rng_state(self.device, x.device)
            yield


def can_rewind(x: Tensor, ctx: Any, layers: nn.Module) -> bool:
    """Whether the states can be recomputed: not in half precision, whose additions are not reversible. Only x and
    parameters that are not sharded may require gradients."""
    if not can_read_values() or not torch.is_grad_enabled() or x.dtype not in (torch.float32, torch.float64):
        return False
    return not has_gradient(ctx) and not any(hasattr(parameter, "placements") for parameter in layers.parameters())


def has_gradient(value: Any) -> bool:
    """Whether any tensor in a nested value requires a gradient."""
    if isinstance(value, Tensor):
        return value.requires_grad
    if dataclasses.is_dataclass(value):
        return any(has_gradient(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, dict):
        return any(map(has_gradient, value.values()))
    return isinstance(value, (tuple, list)) and any(map(has_gradient, value))


def run_rewindable(layers: Sequence[RewindableLayer], x: Tensor, ctx: Any) -> Tensor:
    """Apply the layers to x; the backward pass rewinds them."""
    parameters = {id(p): p for layer in layers for p in layer.parameters() if p.requires_grad}
    return RewindFunction.apply(layers, ctx, x, *parameters.values())


class RewindFunction(torch.autograd.Function):
    @staticmethod
    def forward(saved: Any, layers: Sequence[RewindableLayer], ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        kind = x.device.type
        saved.half = {"enabled": torch.is_autocast_enabled(kind), "dtype": torch.get_autocast_dtype(kind)}
        saved.layers, saved.ctx, saved.parameters, saved.starts = layers, ctx, parameters, []
        for layer in layers:
            layer.step_starts = []
            x = layer(x, ctx)
            saved.starts.append(layer.step_starts)
            layer.step_starts = None
        saved.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(saved: Any, gradient: Tensor) -> Any:
        (y,), found = saved.saved_tensors, Gradients()
        with torch.autocast(y.device.type, **saved.half):
            for layer, starts in zip(reversed(saved.layers), reversed(saved.starts), strict=True):
                y, gradient = layer.rewind(y, gradient, saved.ctx, starts, found)
        return None, None, gradient, *(found.by_id.get(id(parameter)) for parameter in saved.parameters)
