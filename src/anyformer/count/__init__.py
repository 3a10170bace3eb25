"""Counting from the description alone: nothing is allocated."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn

from anyformer.build import skeleton
from anyformer.model import Model


@dataclasses.dataclass(frozen=True)
class Count:
    """Parameters of a description, by address. Tied weights count once, at the address that owns them."""

    parts: dict[str, int]  # address of a parameter -> its size

    @property
    def parameters(self) -> int:
        return sum(self.parts.values())

    def memory(self, bytes_per_parameter: int = 4) -> int:
        """Bytes of the weights alone."""
        return self.parameters * bytes_per_parameter

    def table(self, depth: int = 2) -> dict[str, int]:
        """Parameters by the first `depth` names of the address; the layers of a stack are added up."""
        rows: dict[str, int] = {}
        for address, size in self.parts.items():
            names = [name for name in address.split(".")[:-1] if not name.isdecimal()]
            row = ".".join(names[:depth])
            rows[row] = rows.get(row, 0) + size
        return rows


def count(spec: Model) -> Count:
    """What a description costs, from its shapes on the meta device."""
    model: Any = skeleton(spec)
    parts: dict[str, int] = {}
    seen: set[int] = set()
    tied = {name for name, _ in spec.ties}
    for address, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) not in seen and address not in tied:
            seen.add(id(parameter))
            parts[address] = parameter.numel()
    return Count(parts)
