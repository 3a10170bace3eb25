"""From a description to a model with weights."""

from __future__ import annotations

from typing import Any

import torch

from anyformer.model import Model, TransformerModule
from anyformer.parts.init import initialise
from anyformer.spec import Site


def skeleton(spec: Model) -> TransformerModule:
    """The model on the meta device: shapes and addresses, no memory."""
    if not isinstance(spec, Model):
        raise ValueError(f"only a Model description can be built, got {type(spec).__name__}")
    with torch.device("meta"):
        model = spec.build(Site(width=spec.width))
    model.tie()
    return model


def build(
    spec: Model, *, seed: int = 0, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> Any:
    """A model with the weights its description's initialisation gives for this seed. On `meta` nothing is allocated."""
    model = skeleton(spec)
    if dtype is not None:
        model = model.to(dtype)
    if torch.device(device).type == "meta":
        return model
    model.to_empty(device=device)
    model.tie()
    initialise(model, spec.init, seed)
    return model
