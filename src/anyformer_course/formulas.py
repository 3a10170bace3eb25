"""The textbook formulas for parameters and FLOPs of a Transformer, compared with the exact figures.

d width, n tokens, V vocabulary. The formulas assume that a layer has only attention with d x d matrices and a
feed-forward of width 4 d.
"""

from __future__ import annotations

import dataclasses

from anyformer.counting import Count
from anyformer.counting.shares import mixes, role_of, shares, spec_of
from anyformer.models import Model
from anyformer.parts.base import HasTokens
from anyformer.specs.part import walk
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer


@dataclasses.dataclass(frozen=True)
class Formula:
    """A formula, its value (`lecture`) and the exact figure."""

    about: str
    formula: str
    lecture: int
    exact: int

    @property
    def ratio(self) -> float:
        return self.exact / self.lecture if self.lecture else float("nan")


def parameter_formulas(counted: Count) -> list[Formula]:
    spec = spec_of(counted)
    d, mixers, feeds = spec.width, *_numbers(spec)
    sizes: dict[str, int] = {}
    for address, size in counted.parts.items():
        role = role_of(spec, address)
        sizes[role] = sizes.get(role, 0) + size
    rows = [
        Formula("feed-forward", "2 d 4d", feeds * 8 * d * d, sizes.get("feed-forward", 0)),
        Formula("attention", "4 d^2", mixers * 4 * d * d, sizes.get("attention", 0)),
        Formula("vocabulary", "2 V d", 2 * _vocabulary(spec) * d, sizes.get("vocabulary", 0) + sizes.get("head", 0)),
    ]
    return [*rows, Formula("total", "", sum(row.lecture for row in rows), counted.parameters)]


def token_formulas(
    counted: Count, length: int, causal: bool = False, source_length: int | None = None
) -> list[Formula]:
    """Return the formulas for FLOPs per token in a text of `length` tokens."""
    spec, found = spec_of(counted), shares(counted, length, causal, source_length)
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


def _numbers(spec: Model) -> tuple[int, int]:
    """Return how many Ops that mix tokens, and how many that do not, a text passes through."""
    numbers = [0, 0]
    for _, stack in walk(spec):
        if isinstance(stack, Stack):
            for i in stack.steps:
                ops = [part.op for _, part in walk(stack.layer(i)) if isinstance(part, Sublayer)]
                numbers = [numbers[0] + sum(map(mixes, ops)), numbers[1] + sum(not mixes(op) for op in ops)]
    return numbers[0], numbers[1]


def _vocabulary(spec: Model) -> int:
    embedding = dict(spec.items())["embedding"]
    return embedding.tokens.vocab_size if isinstance(embedding, HasTokens) else 0
