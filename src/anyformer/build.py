"""From a description to a model with weights."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from anyformer import machine
from anyformer.model import Model, TransformerModule
from anyformer.parts.init import initialise
from anyformer.spec import Site


class _Unfilled(TorchFunctionMode):
    """On meta there is nothing to fill; and torch's random fills there import its whole compiler first (seconds)."""

    fills = frozenset(("normal_", "uniform_", "trunc_normal_", "kaiming_uniform_", "xavier_uniform_"))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in self.fills:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def skeleton(spec: Model, kind: type[Site] = Site) -> TransformerModule:
    """The model on the meta device: shapes and addresses, no memory. It is built at a site of this kind."""
    if not isinstance(spec, Model):
        raise ValueError(f"only a Model description can be built, as af.spec gives it, got {type(spec).__name__}")
    try:
        with torch.device("meta"), _Unfilled():
            model = spec.build(kind(width=spec.width))
    except (TypeError, RuntimeError, AssertionError, ArithmeticError) as error:  # of torch, about sizes
        raise ValueError(f"this description cannot be built: {str(error).splitlines()[0]}") from error
    model.tie()
    return model


def build(
    spec: Model, *, seed: int = 0, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> Any:
    """A model with the weights its description's initialisation gives for this seed. On `meta` nothing is allocated."""
    if not isinstance(seed, int):
        raise ValueError(f"seed is a whole number, got {seed!r}")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype is a floating-point type such as torch.bfloat16, got {dtype!r}")
    where = machine.device(device)
    model = skeleton(spec)
    if dtype is not None:
        model = model.to(dtype)
    if where.type == "meta":
        return model
    model.to_empty(device=where)
    model.tie()
    initialise(model, spec.init, seed)
    return model
