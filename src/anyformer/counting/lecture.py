"""The formulas by which a Transformer is counted on a blackboard, beside what it is.

d width, n tokens, V vocabulary; a layer has attention with matrices d x d and a feed-forward of width 4 d, and no
parameters else.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from anyformer.counting import Count
from anyformer.models import Model
from anyformer.parts.op import Op
from anyformer.specs.addresses import value_at
from anyformer.specs.part import walk
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer


@dataclasses.dataclass(frozen=True)
class Formula:
    """A formula and what it stands for, both as numbers."""

    about: str
    formula: str
    lecture: int
    exact: int

    @property
    def ratio(self) -> float:
        return self.exact / self.lecture if self.lecture else float("nan")


def parameter_formulas(counted: Count) -> list[Formula]:
    spec = _spec(counted)
    d, mixers, feeds = spec.width, *_numbers(spec)
    found: dict[str, int] = {}
    for address, size in counted.parts.items():
        role = _role(spec, address)
        found[role] = found.get(role, 0) + size
    rows = [
        Formula("feed-forward", "2 d 4d", feeds * 8 * d * d, found.get("feed-forward", 0)),
        Formula("attention", "4 d^2", mixers * 4 * d * d, found.get("attention", 0)),
        Formula("vocabulary", "2 V d", 2 * _vocabulary(spec) * d, found.get("vocabulary", 0) + found.get("head", 0)),
    ]
    return [*rows, Formula("total", "", sum(row.lecture for row in rows), counted.parameters)]


def token_formulas(
    counted: Count, length: int, causal: bool = False, source_length: int | None = None
) -> list[Formula]:
    """FLOPs of a token in a text of `length`."""
    spec, found = _spec(counted), shares(counted, length, causal, source_length)
    d, mixers, feeds = spec.width, *_numbers(spec)
    rows = [
        Formula("feed-forward", "2 2 d 4d", feeds * 16 * d * d, found["feed-forward"] // length),
        Formula("attention, projections", "2 4 d^2", mixers * 8 * d * d, found["projections"] // length),
        Formula("attention, products", "2 2 n d", mixers * 4 * length * d, found["products"] // length),
        Formula("head", "2 d V", 2 * d * _vocabulary(spec), found["head"] // length),
    ]
    lecture, exact = sum(row.lecture for row in rows), sum(found.values()) // length
    times = (("forward", "", 1), ("training", "x 3", 3), ("training, recomputed", "x 4", 4))
    return [*rows, *(Formula(about, formula, n * lecture, n * exact) for about, formula, n in times)]


def shares(counted: Count, length: int, causal: bool = False, source_length: int | None = None) -> dict[str, int]:
    """FLOPs of a text by what they are for: both products of attention, its projections, feed-forward layers, the head
    and the rest."""
    spec, work = _spec(counted), counted.work(length, source_length)
    found = dict.fromkeys(("feed-forward", "projections", "products", "head", "rest"), 0)
    for address, flops in work.by_address(causal).items():
        role = _role(spec, address)
        inside = work.pairs.get(address, 0) - causal * work.later.get(address, 0) if role == "attention" else 0
        found["products"] += inside
        found["projections" if role == "attention" else role if role in found else "rest"] += flops - inside
    return found


def _spec(counted: Count) -> Model:
    assert counted.spec is not None
    return counted.spec


def _role(spec: Model, address: str) -> str:
    """What a parameter or product is for, by its address."""
    names = address.split(".")
    if names[0] == "head":
        return "head"
    if names[0].endswith("embedding"):
        return "vocabulary" if names[1:2] == ["tokens"] else "rest"
    op = _op(spec, ".".join(names))
    return "rest" if op is None else "attention" if mixes(op) else "feed-forward"


@functools.lru_cache(maxsize=4096)
def _op(spec: Model, address: str) -> Op | None:
    """The Op that an address is in."""
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
    """Whether tokens meet in it, by what its kind says of itself: experts with room for few are no attention."""
    return op.said != "itself"


def _numbers(spec: Model) -> tuple[int, int]:
    """How many times a text goes through an Op that mixes tokens, and through one that does not."""
    found = [0, 0]
    for _, stack in walk(spec):
        if isinstance(stack, Stack):
            for i in stack.steps:
                ops = [part.op for _, part in walk(stack.layer(i)) if isinstance(part, Sublayer)]
                found = [found[0] + sum(map(mixes, ops)), found[1] + sum(not mixes(op) for op in ops)]
    return found[0], found[1]


def _vocabulary(spec: Model) -> int:
    tokens = getattr(dict(spec.items())["embedding"], "tokens", None)
    return 0 if tokens is None else tokens.vocab_size
