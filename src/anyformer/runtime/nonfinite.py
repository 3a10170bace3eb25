"""Find the module that produced the first NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _tensors(item)]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in _tensors(item)]
    return []


def _bad(value: Any) -> bool:
    return any(t.is_floating_point() and not bool(t.isfinite().all()) for t in _tensors(value))


@torch.no_grad()
def first_nonfinite(model: nn.Module, run: Callable[[], object]) -> str | None:
    """Call `run` and return the address of the first module whose output is not finite; None if all are."""
    found: list[str] = []

    def watch(address: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if not found and _bad(output):
                found.append(address)

        return hook

    handles = [m.register_forward_hook(watch(address)) for address, m in model.named_modules() if address]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def explain(model: nn.Module, run: Callable[[], object] | None) -> str:
    """Return the error message, which names the first address with values that are not finite.

    `run` repeats the forward pass. It is None if that is impossible (a decoding step, or a training step whose weights
    have changed since); then only the weights are searched.
    """
    weights = [address for address, p in model.named_parameters() if _bad(p)]
    where = weights[0] if weights else None if run is None else first_nonfinite(model, run)
    address: Any = getattr(model, "address", None)
    if where is not None and address:  # a tower of another model
        where = f"{address}.{where}"
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return f"NaN in {dtype}: the first values that are not finite appear in {where or 'this step or the one before'}"
