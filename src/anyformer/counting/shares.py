"""The FLOPs of a text by purpose: feed-forward, attention, head."""

from __future__ import annotations

import functools
from typing import Any

from anyformer.counting import Count
from anyformer.models import Model
from anyformer.parts.op import Op
from anyformer.specs.addresses import value_at


def shares(counted: Count, length: int, causal: bool = False, source_length: int | None = None) -> dict[str, int]:
    """Return the FLOPs of a text by purpose: feed-forward, attention projections, attention products, head, rest."""
    spec, work = spec_of(counted), counted.work(length, source_length)
    found = dict.fromkeys(("feed-forward", "projections", "products", "head", "rest"), 0)
    for address, flops in work.by_address(causal).items():
        role = role_of(spec, address)
        inside = work.pairs.get(address, 0) - causal * work.later.get(address, 0) if role == "attention" else 0
        found["products"] += inside
        found["projections" if role == "attention" else role if role in found else "rest"] += flops - inside
    return found


def spec_of(counted: Count) -> Model:
    assert counted.spec is not None
    return counted.spec


def role_of(spec: Model, address: str) -> str:
    """Return the role of a parameter or product, given its address."""
    names = address.split(".")
    if names[0] == "head":
        return "head"
    if names[0].endswith("embedding"):
        return "vocabulary" if names[1:2] == ["tokens"] else "rest"
    op = _op(spec, ".".join(names))
    return "rest" if op is None else "attention" if mixes(op) else "feed-forward"


@functools.lru_cache(maxsize=4096)
def _op(spec: Model, address: str) -> Op | None:
    """Return the Op that contains an address, or None."""
    names = address.split(".")
    for end in range(len(names), 0, -1):
        try:
            found: Any = value_at(spec, ".".join(names[:end]))
        except ValueError:
            continue
        if isinstance(found, Op):
            return found
    return None


def mixes(op: Op) -> bool:
    """Whether the Op mixes tokens, according to its class. Experts with a limited capacity do not count as mixing."""
    return op.declared_sees != "itself"
