"""Counting from the description alone: nothing is allocated."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from anyformer.construct import skeleton
from anyformer.counting.survey import Survey, everywhere
from anyformer.model import Model
from anyformer.state import Declared, declarations


@dataclasses.dataclass(frozen=True)
class Count:
    """Parameters of a description, by address. Tied weights count once, at the address that owns them."""

    parts: dict[str, int]  # address of a parameter -> its size
    remembered: tuple[Declared, ...] = ()  # what each mixer keeps between decoding steps
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
        return sum(each.nbytes(batch, length, dtype, source_length) for each in self.remembered)

    def table(self, depth: int = 2) -> dict[str, int]:
        """Parameters by the first `depth` names of the address; the layers of a stack are added up."""
        rows: dict[str, int] = {}
        for address, size in self.parts.items():
            names = [name for name in address.split(".")[:-1] if not name.isdecimal()]
            row = ".".join(names[:depth])
            rows[row] = rows.get(row, 0) + size
        return rows


def count(spec: Model) -> Count:
    """What a description costs, from its shapes on the meta device; of layers that are alike one is built."""
    model: Any = skeleton(spec, Survey)
    parts: dict[str, int] = {}
    modules: list[tuple[str, nn.Module]] = []
    tied, seen, idle = {name for name, _ in spec.ties}, set(), 0
    for address, module, copy in everywhere(model):
        for name, parameter in module.named_parameters(address, recurse=False, remove_duplicate=False):
            if (copy, id(parameter)) not in seen and name not in tied:
                seen.add((copy, id(parameter)))
                parts[name] = parameter.numel()
        if (copy, id(module)) not in seen:
            seen.add((copy, id(module)))
            modules.append((address, module))
            share: float = getattr(module, "unused", 0.0)
            idle += sum(round(p.numel() * share) for p in module.parameters(recurse=False))
    return Count(parts, tuple(each for _, each in declarations(model, modules)), idle)
