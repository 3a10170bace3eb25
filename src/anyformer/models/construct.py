"""From a description to a model with weights."""

from __future__ import annotations

import torch

from anyformer.kernels import hardware
from anyformer.models import Model, TransformerModule
from anyformer.specs.messages import quote
from anyformer.specs.part import Site


def skeleton(spec: Model, kind: type[Site] = Site) -> TransformerModule:
    """The model on the meta device: shapes and addresses, no memory. It is built at a site of this kind."""
    return check_model(spec).skeleton(kind)


def build(
    spec: Model, *, seed: int = 0, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> TransformerModule:
    """A model with the weights its description's initialisation gives for this seed. On `meta` nothing is allocated."""
    if not isinstance(seed, int):
        raise ValueError(f"seed is a whole number, got {quote(seed)}")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype is a floating-point type such as torch.bfloat16, got {quote(dtype)}")
    return check_model(spec).make(seed, hardware.device(device), dtype)


def check_model(spec: Model) -> Model:
    if not isinstance(spec, Model):
        raise ValueError(f"only a Model description can be built, as af.spec gives it, got {type(spec).__name__}")
    return spec
