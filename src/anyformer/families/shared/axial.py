"""Axial positions [Kitaev et al. 2020] in published configs and files: one table per side of a grid (Reformer)."""

from __future__ import annotations

import math

from anyformer.families.base.template import Config, Entry
from anyformer.parts import AxialLearned, Learned, Model
from anyformer.specs.addresses import value_at
from anyformer.weights.rules import Reshape, Rule

ENTRIES = {
    "axial_pos_embds": Entry(True, lambda spec: isinstance(spec.embedding.position, AxialLearned)),
    "axial_pos_shape": Entry((64, 64), "embedding.position.shape"),
    "axial_pos_embds_dim": Entry((64, 192), "embedding.position.widths"),
    "axial_norm_std": Entry(1.0, "embedding.position.std"),
}


def position(c: Config) -> AxialLearned | Learned:
    dropout, length = c.hidden_dropout_prob, c.max_position_embeddings
    if not c.axial_pos_embds:
        return Learned(length=length, dropout=dropout)
    shape, widths = c.axial_pos_shape, c.axial_pos_embds_dim
    short = length if length < math.prod(shape) else None
    axial = AxialLearned(shape=shape, widths=widths, std=c.axial_norm_std, dropout=dropout, length=short)
    if sum(axial.widths) != c.hidden_size:
        raise ValueError(f"axial_pos_embds_dim {axial.widths} must add up to hidden_size {c.hidden_size}")
    return axial


def rules(theirs: str, spec: Model) -> list[Rule]:
    position, tables = value_at(spec, "embedding.position"), list[Rule]()
    for i in range(len(position.shape) if isinstance(position, AxialLearned) else 0):
        sides = [position.shape[i] if side == i else 1 for side in range(len(position.shape))]
        tables.append(Reshape(f"{theirs}.{i}", f"embedding.position.side{i}", (*sides, position.widths[i])))
    return tables
