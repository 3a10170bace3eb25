"""Parameters that stand still, by address.

freeze(model, "embedding", "encoder.layers.[0-3]")     # a pattern also means all that is below what it matches
"""

from __future__ import annotations

import fnmatch
from typing import Any

from anyformer.models import TransformerModule
from anyformer.specs.messages import nearest, quote
from anyformer.transforms.lora import NAMES


def freeze(model: TransformerModule, *patterns: str) -> Any:
    """Parameters that match one of the patterns are not learnt from here on; the model is changed and returned. What
    only starts to learn here, adapters and a new head, stands still where a pattern matches nothing else."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    starting = {name for name in parameters if name.rpartition(".")[2] in NAMES or name in model.fresh}
    tied, frozen = {name for name in parameters if model.spec.owner_of(name)}, set[str]()
    for pattern in patterns:
        found = {name for name in parameters if any(fnmatch.fnmatchcase(name, p) for p in (pattern, f"{pattern}.*"))}
        if not found:
            known = {address for name in parameters for address in (name, name.rpartition(".")[0])}
            raise ValueError(f"freeze: no parameter matches {quote(pattern)}; {nearest(pattern, known)}")
        frozen |= found - starting if found - starting - tied else found
    for name in frozen:
        parameters[name].requires_grad_(False)
    return model
