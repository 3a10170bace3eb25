"""Freezing of parameters by address.

freeze(model, "embedding", "encoder.layers.[0-3]")     # a pattern that matches a module includes its parameters
"""

from __future__ import annotations

import fnmatch
from typing import TypeVar

from anyformer.models import TransformerModule
from anyformer.specs.messages import nearest, quote
from anyformer.transforms.lora import NAMES

M = TypeVar("M", bound=TransformerModule)


def freeze(model: M, *patterns: str) -> M:
    """Freeze parameters that match one of the patterns. Changes the model in place and returns it. Adapters and a new
    head are frozen only by a pattern that matches nothing else."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    new = {name for name in parameters if name.rpartition(".")[2] in NAMES or name in model.fresh}
    tied, frozen = {name for name in parameters if model.spec.owner_of(name)}, set[str]()
    for pattern in patterns:
        matches = {name for name in parameters if any(fnmatch.fnmatchcase(name, p) for p in (pattern, f"{pattern}.*"))}
        if not matches:
            known = {address for name in parameters for address in (name, name.rpartition(".")[0])}
            raise ValueError(f"freeze: no parameter matches {quote(pattern)}; {nearest(pattern, known)}")
        frozen |= matches - new if matches - new - tied else matches
    for name in frozen:
        parameters[name].requires_grad_(False)
    return model
