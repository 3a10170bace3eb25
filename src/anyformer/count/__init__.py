"""Counting from the description alone: nothing is allocated."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from anyformer.build import skeleton
from anyformer.count.state import bytes_of
from anyformer.model import Model
from anyformer.state import declarations


@dataclasses.dataclass(frozen=True)
class Count:
    """Parameters of a description, by address. Tied weights count once, at the address that owns them."""

    parts: dict[str, int]  # address of a parameter -> its size
    remembered: tuple[object, ...] = ()  # what each mixer keeps between decoding steps
    idle: int = 0  # parameters that a token passes by: experts it does not go to

    @property
    def parameters(self) -> int:
        return sum(self.parts.values())

    @property
    def active(self) -> int:
        """Parameters that one token uses."""
        return self.parameters - self.idle

    def memory(self, bytes_per_parameter: int = 4) -> int:
        """Bytes of the weights alone."""
        return self.parameters * bytes_per_parameter

    def state(self, batch: int, length: int, dtype: torch.dtype = torch.float32, source_length: int = 0) -> int:
        """Bytes of the decoding state of `batch` texts of `length` tokens (after so many read by an encoder)."""
        return sum(bytes_of(each, batch, length, dtype, source_length) for each in self.remembered)

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
    idle = 0
    for module in model.modules():
        for parameter in module.parameters(recurse=False) if hasattr(module, "unused") else ():
            idle += round(parameter.numel() * module.unused)
    return Count(parts, tuple(each for _, each in declarations(model)), idle)
