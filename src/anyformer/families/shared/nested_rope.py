"""Published `rope_parameters` with one object per type of layer (ModernBERT) <-> the Rope of each kind of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anyformer.families.base.template import Config, Entry, read_only
from anyformer.families.shared.layer_types import KINDS
from anyformer.families.shared.rope import ROPE, read_rope, write_rope
from anyformer.parts import Model, Rope
from anyformer.specs.addresses import find


def entries(address: str, thetas: Mapping[str, tuple[str, float]]) -> dict[str, Entry]:
    """Return the entries. `address` has a place for the kind of layers; `thetas`: type of layer -> the older field of
    its base frequency, and the published default."""

    def write(spec: Model) -> dict[str, Any]:
        ropes = {kind: next(find(spec, address.format(ours)), None) for kind, ours in KINDS.items()}
        return {kind: write_rope(found[1]) for kind, found in ropes.items() if found is not None}

    return {
        "rope_parameters": Entry(None, write, within=frozenset(KINDS)),
        "rope_scaling": read_only(within=ROPE),  # for all layers
        **{field: read_only(theta) for field, theta in thetas.values()},
    }


def read_ropes(address: str, thetas: Mapping[str, tuple[str, float]]) -> dict[str, Callable[[Config], Rope]]:
    """Return the values at the addresses of the Ropes."""

    def read(kind: str, field: str) -> Callable[[Config], Rope]:
        def of(c: Config) -> Rope:
            given = {"rope_theta": getattr(c, field), **((c.rope_parameters or {}).get(kind) or {})}
            none = dict.fromkeys(("rope_scaling", "rope_theta", "original_max_position_embeddings"))
            rope = {**given, **(c.rope_scaling or {})}
            return read_rope(Config(**none, rope_parameters=rope, max_position_embeddings=c.max_position_embeddings))

        return of

    return {address.format(KINDS[kind]): read(kind, field) for kind, (field, _) in thetas.items()}
