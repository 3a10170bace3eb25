"""Layers that are undone in the backward pass: of all their states the last alone is kept [Gomez et al. 2017]."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from anyformer.kernels.recording import recording


class Undone(Protocol):
    """A layer that can be rewound: a module, called with (x, ctx) and told by `dice` where to note the dice."""

    dice: list[Dice] | None

    def __call__(self, x: Tensor, ctx: Any) -> Tensor: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def rewind(self, y: Tensor, slope: Tensor, ctx: Any, dice: list[Dice], found: Slopes) -> tuple[Tensor, Tensor]:
        """What led to y, and its slope from y's; those of parameters are added to `found`."""


class Slopes:
    """Of parameters, as they come in."""

    def __init__(self) -> None:
        self.by_id: dict[int, Tensor] = {}

    def add(self, parameters: Sequence[Tensor], slopes: Iterable[Tensor | None]) -> None:
        for parameter, slope in zip(parameters, slopes, strict=True):
            if slope is not None:
                before = self.by_id.get(id(parameter))
                self.by_id[id(parameter)] = slope if before is None else before + slope


@dataclasses.dataclass(frozen=True)
class Dice:
    """The state of torch's generators, for dropout to fall as it fell."""

    cpu: Tensor
    device: Tensor | None  # of a GPU

    @classmethod
    def noted(cls, x: Tensor) -> Dice:
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state(x.device) if x.is_cuda else None)

    @contextlib.contextmanager
    def again(self, x: Tensor) -> Iterator[None]:
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            torch.set_rng_state(self.cpu)
            if self.device is not None:
                torch.cuda.set_rng_state(self.device, x.device)
            yield


def can_rewind(x: Tensor, ctx: Any, layers: nn.Module) -> bool:
    """Whether what rewinding finds is what went in: not in half precision, which forgets what it adds; and every slope
    must go to x or to a parameter that is whole in this process."""
    if recording() or not torch.is_grad_enabled() or x.dtype not in (torch.float32, torch.float64):
        return False
    return not learns(ctx) and not any(hasattr(parameter, "placements") for parameter in layers.parameters())


def learns(value: Any) -> bool:
    """Whether a tensor in it has a slope."""
    if isinstance(value, Tensor):
        return value.requires_grad
    if dataclasses.is_dataclass(value):
        return any(learns(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, dict):
        return any(map(learns, value.values()))
    return isinstance(value, (tuple, list)) and any(map(learns, value))


def rewound(layers: Sequence[Undone], x: Tensor, ctx: Any) -> Tensor:
    """x through the layers."""
    parameters = {id(p): p for layer in layers for p in layer.parameters() if p.requires_grad}
    return Rewound.apply(layers, ctx, x, *parameters.values())


class Rewound(torch.autograd.Function):
    @staticmethod
    def forward(saved: Any, layers: Sequence[Undone], ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        kind = x.device.type
        saved.half = {"enabled": torch.is_autocast_enabled(kind), "dtype": torch.get_autocast_dtype(kind)}
        saved.layers, saved.ctx, saved.parameters, saved.dice = layers, ctx, parameters, []
        for layer in layers:
            layer.dice = []
            x = layer(x, ctx)
            saved.dice.append(layer.dice)
            layer.dice = None
        saved.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(saved: Any, slope: Tensor) -> Any:
        (y,), found = saved.saved_tensors, Slopes()
        with torch.autocast(y.device.type, **saved.half):
            for layer, dice in zip(reversed(saved.layers), reversed(saved.dice), strict=True):
                y, slope = layer.rewind(y, slope, saved.ctx, dice, found)
        return None, None, slope, *(found.by_id.get(id(parameter)) for parameter in saved.parameters)
