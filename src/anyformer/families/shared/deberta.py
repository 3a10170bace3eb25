"""Disentangled attention [He et al. 2021] in the configs of both DeBERTa versions: score terms by relative position."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from anyformer.families.base.fields import Absent
from anyformer.families.base.template import Config, Entry, entry
from anyformer.parts import Disentangled, Model
from anyformer.specs.addresses import value_at

ATTENTION = "encoder.layers.attention.op"
POSITION = "encoder.layers.0.attention.op.position"  # the first layer owns the table of relative positions


def score_terms(c: Config) -> list[str]:
    """Return the names of the score terms in addition to q k: "c2p", "p2c"."""
    terms = c.pos_att_type or []
    return [term.strip() for term in terms.lower().split("|")] if isinstance(terms, str) else terms


def scale(c: Config, terms: int) -> float | None:
    return None if terms == 1 else (terms * c.hidden_size / c.num_attention_heads) ** -0.5


def distances(c: Config, **more: Any) -> Disentangled | None:
    """Return the position Part; `more` are its fields that differ between the versions."""
    if not c.relative_attention:
        return None
    return Disentangled(
        num_heads=c.num_attention_heads,
        reach=c.max_relative_positions if c.max_relative_positions > 0 else c.max_position_embeddings,
        by_query="c2p" in score_terms(c),
        by_key="p2c" in score_terms(c),
        dropout=c.hidden_dropout_prob,
        **more,
    )


def distances_of(spec: Model) -> Disentangled | None:
    """Return the position Part of the layers; None: they have no relative positions, or another kind."""
    position = value_at(spec, POSITION)
    return position if isinstance(position, Disentangled) else None


def relative_attention(read: Callable[[Config], Disentangled | None]) -> Entry:
    return entry(
        f"{ATTENTION}.position",
        default=False,
        read=lambda value, c: read(c),
        path=lambda spec: (position := distances_of(spec)) is not None and position.reach > 0,
    )


def distance_field(default: Any, read: Callable[[Disentangled], Any]) -> Entry:
    """A field that is written only if the model has relative positions."""

    def recover(spec: Model) -> Any:
        position = distances_of(spec)
        if position is None or not position.reach:
            raise Absent
        return read(position)

    return Entry(default, recover)


def omit_default(field: Entry) -> Entry:
    """Omit the default on export, for a field that published models read and their config class does not declare."""

    def recover(spec: Model) -> Any:
        if (value := field.recover(spec)) == field.default:
            raise Absent
        return value

    return dataclasses.replace(field, path=recover)
