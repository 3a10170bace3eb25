"""Records, one per example, and batches: padded tensors of several records. B batch, T tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from anyformer.kernels.loss import IGNORED

Record = dict[str, np.ndarray]  # name -> 1-D or 0-D array
Batch = dict[str, Tensor]


def pad_rows(rows: Sequence[np.ndarray], value: int | float) -> Tensor:
    """Stack 1-D arrays into (B, longest), padded on the right with `value`."""
    width = max(len(row) for row in rows)
    if all(len(row) == width for row in rows):
        out = np.stack(rows)
    else:
        out = np.full((len(rows), width), value, dtype=rows[0].dtype)
        for i, row in enumerate(rows):
            out[i, : len(row)] = row
    tensor = torch.from_numpy(out)
    return tensor if tensor.is_floating_point() else tensor.long()


def pad_texts(records: Sequence[Record], pad: int) -> Batch:
    """Return "input_ids", "attention_mask" if rows differ in length, and "token_type_ids" if records have them."""
    rows = [record["input_ids"] for record in records]
    batch = {"input_ids": pad_rows(rows, pad)}
    T = batch["input_ids"].shape[1]
    lengths = torch.tensor([len(row) for row in rows])
    if int(lengths.min()) < T:
        batch["attention_mask"] = (torch.arange(T) < lengths[:, None]).long()
    if "token_type_ids" in records[0]:
        batch["token_type_ids"] = pad_rows([record["token_type_ids"] for record in records], 0)
    return batch


def scalars(records: Sequence[Record], name: str) -> Tensor:
    """Stack 0-D arrays into (B,)."""
    tensor = torch.from_numpy(np.stack([record[name] for record in records]))
    return tensor.float() if tensor.is_floating_point() else tensor.long()


def num_labels(labels: Tensor) -> float:
    return float((labels != IGNORED).sum())
