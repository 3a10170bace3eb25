"""Pooling of a sequence to one vector, and the layers after it.

B batch, T tokens, D width.
"""

from __future__ import annotations

from typing import Any, Self

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.base import PartModule
from anyformer.parts.head.pooling import FirstToken, Pooling
from anyformer.parts.norm import Norm
from anyformer.parts.unused import Unused
from anyformer.runtime.context import Context
from anyformer.specs.part import Part, Site

STRINGS: dict[str, dict[str, Any]] = {  # values of `take` in earlier versions
    "first": {"kind": "FirstToken"},
    "last": {"kind": "LastToken"},
    "mean": {"kind": "MeanTokens"},
    "token": {"kind": "LastOccurrence"},
    "mark": {"kind": "FirstOccurrence"},
    "highest": {"kind": "HighestId"},
    "end": {"kind": "LastColumn"},
    "all": {"kind": "MeanColumns"},
    "rest": {"kind": "MeanColumns", "skip": 1},
    "seeds": {"kind": "SeedPool"},
}
FIELDS = {"last": "padding_token", "token": "token", "mark": "token", "seeds": "seeds"}  # of each, in earlier versions


class Pool(Part, called=("pooler",)):
    """Pools a sequence to one vector by `take`; norm, dense layer and activation follow."""

    take: Pooling = FirstToken()
    norm: Norm | Unused | None = None  # of the pooled vector; CLIP's classifier stores one that it does not use
    input_dropout: float = 0.0  # before the dense layer (RoBERTa)
    dense: bool = False
    activation: Activation = "identity"
    dropout: float = 0.0
    width: int | None = None  # of the dense layer's output; default: the model's

    def __new__(cls, *values: Any, **fields: Any) -> Self:
        take = fields.get("take")
        if isinstance(take, str) and take in STRINGS:
            kind, *rest = part_for(take, fields).items()
            code = f"{kind[1]}({', '.join(f'{name}={value}' for name, value in rest)})"
            raise ValueError(f"Pool.take is a Part: write {code} instead of {take!r}")
        return super().__new__(cls, *values, **fields)

    def check(self) -> None:
        if (count := self.take.out_width(1)) > 1 and not self.dense:
            raise ValueError(f"Pool.take: {count} vectors need a dense layer to become one; set dense=True")

    @classmethod
    def upgrade(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Earlier versions named the way to pool by a string, and had the fields of each way and `unused_norm`."""
        fields = {name: data.pop(name, None) for name in {*FIELDS.values()}}
        take = data.get("take", "first")
        if isinstance(take, str) and take in STRINGS:
            data["take"] = part_for(take, fields)
        if data.pop("unused_norm", data.pop("idle_norm", False)):
            data["norm"] = {"kind": "Unused", "part": data.get("norm")}
        return data


def part_for(take: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the Part that replaces a string of an earlier version, as JSON data."""
    name = FIELDS.get(take, "")
    return STRINGS[take] | ({} if fields.get(name) is None else {name: fields[name]})


class PoolModule(PartModule, of=Pool):
    def __init__(self, part: Pool, site: Site) -> None:
        super().__init__()
        self.part, pooled_width = part, part.take.out_width(site.width)
        self.take = part.take.build(site.child("take"))
        self.norm = part.norm.build(site.child("norm", width=pooled_width)) if part.norm else None
        self.dense = nn.Linear(pooled_width, part.width or site.width) if part.dense else None
        self.activation = ACTIVATIONS[part.activation]

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        """(B, T, D) -> (B, D)"""
        x = self.take(x, ctx, inputs)
        if self.norm is not None:
            x = self.norm(x)
        if self.training and self.part.input_dropout:
            x = F.dropout(x, self.part.input_dropout)
        if self.dense is not None:
            x = self.dense(x)
        x = self.activation(x)
        return F.dropout(x, self.part.dropout) if self.training and self.part.dropout else x
