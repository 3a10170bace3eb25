"""Replacing the forward of one module. The module stays the same object at the same address, so ties, fused layers,
hooks, references and names of parameters remain valid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeGuard

from torch import nn


class ForwardOverride:
    """Computes the output of one module instead of the forward of its class. `module(x)` calls it like any forward,
    torch.compile traces it, and copy.deepcopy and pickle copy it together with the module."""

    same_function: ClassVar[bool] = False  # the output is that of the class, up to the order of sums

    replaced: Callable[..., Any]  # the forward before `install`, restored by `remove`

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, *args: Any) -> Any:
        raise NotImplementedError

    def install(self) -> None:
        self.replaced = self.module.forward
        self.module.forward = self

    def remove(self) -> None:
        """Undo `install`. Overrides are removed in the opposite order."""
        del self.module.forward
        if self.module.forward != self.replaced:  # it was an override, not the method of the class
            self.module.forward = self.replaced


def is_plain(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a layer is an nn.Linear without an override: neither quantized nor packed nor adapted."""
    return type(layer) is nn.Linear and not isinstance(layer.forward, ForwardOverride)


def is_product(layer: nn.Module) -> bool:
    """Whether a layer is an nn.Linear that multiplies by its weight, packed or not: neither quantized nor adapted."""
    if type(layer) is not nn.Linear:
        return False
    forward: Any = layer.forward
    return forward.same_function if isinstance(forward, ForwardOverride) else True
