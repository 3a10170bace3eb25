"""What an embedding remembers of the tokens it saw: one mark each.

B rows, S tokens held, L room for tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.state import Slot


@dataclasses.dataclass(frozen=True)
class MarkSpec:
    """One mark of every token seen."""

    def slot(self, batch_size: int, capacity: int | None, device: torch.device) -> Slot:
        empty = None if capacity is None else torch.zeros(batch_size, capacity, dtype=torch.bool, device=device)
        return Marks(empty)

    def nbytes(self, batch: int, length: int) -> int:
        return batch * length


class Marks(Slot):
    """(B, S) marks that lengthen by concatenation; (B, L) where static, written in place."""

    def __init__(self, static: Tensor | None = None) -> None:
        super().__init__()
        self.static = static is not None
        self.tensors = {} if static is None else {"marks": static}

    def extend(self, marks: Tensor, index: Tensor) -> Tensor:
        """New marks (B, T) at row places `index` in; those of the whole row out."""
        held = self.tensors.get("marks")
        if held is not None and self.static:
            return held.index_copy_(1, index, marks)
        self.tensors["marks"] = marks if held is None else torch.cat((held, marks), dim=1)
        return self.tensors["marks"]

    def reorder(self, rows: Tensor) -> None:
        old = self.tensors.get("marks")
        super().reorder(rows)
        if old is not None and self.static and len(rows) == old.shape[0]:
            self.tensors = {"marks": old.copy_(self.tensors["marks"])}

    def truncate(self, dropped: int) -> None:
        if not self.static:
            self.tensors = {name: tensor[:, : tensor.shape[1] - dropped] for name, tensor in self.tensors.items()}

    def trim(self, length: int) -> None:
        self.tensors = {name: tensor[:, -length:] for name, tensor in self.tensors.items()}

    def fork(self) -> Slot:
        copy = super().fork()
        if self.static:
            copy.tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return copy

    def adopt(self, other: Slot, length: int) -> None:
        self.tensors["marks"][:, :length] = other.tensors["marks"]

    def growing(self, length: int) -> Slot:
        copy = Marks()
        copy.tensors = {name: tensor[:, :length].clone() for name, tensor in self.tensors.items()}
        return copy

    def join(self, others: Sequence[Slot], longest: int) -> None:
        found = [slot.tensors["marks"] for slot in (self, *others)]
        held = max(marks.shape[1] for marks in found)
        self.tensors["marks"] = torch.cat([F.pad(marks, (held - marks.shape[1], 0)) for marks in found])
