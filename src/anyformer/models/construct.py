"""Build a model with weights from a description."""

from __future__ import annotations

from typing import TypeVar

import torch

from anyformer.kernels import hardware
from anyformer.models import Model, TransformerModule
from anyformer.specs.messages import quote
from anyformer.specs.part import Site

M = TypeVar("M", bound=Model)


def skeleton(spec: Model, kind: type[Site] = Site) -> TransformerModule:
    """Build the model on the meta device: shapes and addresses, no memory. `kind` is the class of its Site."""
    return check_model(spec).skeleton(kind)


def build(
    spec: M, *, seed: int = 0, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> TransformerModule[M]:
    """Build a model and initialise its weights with this seed. On device `meta` nothing is allocated."""
    if not isinstance(seed, int):
        raise ValueError(f"seed must be an integer, got {quote(seed)}")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype must be a floating-point type such as torch.bfloat16, got {quote(dtype)}")
    return check_model(spec).make(seed, hardware.device(device), dtype)


def check_model(spec: Model) -> Model:
    if not isinstance(spec, Model):
        hint = f": write af.spec({spec!r}); af.load also loads weights" if isinstance(spec, str) else ""
        raise ValueError(f"expected a model description from af.spec, got {type(spec).__name__}{hint}")
    return spec
