"""How the hidden states of a text become its vector, and where models store this."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from anyformer.models import Model
from anyformer.weights.io import read_json

SentencePool = Literal["cls", "mean", "last"]
FIELDS: dict[SentencePool, str] = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "last": "pooling_mode_lasttoken",
}
POOLS = tuple(FIELDS)
FOLDER = "1_Pooling"  # of sentence-transformers
SOURCE = "sentence_pooling"  # our field of a trained description, and of its config.json


def pool_states(x: Tensor, mask: Tensor | None, pool: str) -> Tensor:
    """(B, T, D) -> (B, D); `mask` (B, T) is 0 for padding, which may be on either side."""
    if mask is None:
        mask = torch.ones(x.shape[:2], dtype=torch.long, device=x.device)
    if pool == "mean":
        weights = mask[..., None].to(x.dtype)
        return (x * weights).sum(1) / weights.sum(1)
    rows, positions = torch.arange(len(x), device=x.device), torch.arange(x.shape[1], device=x.device)
    return x[rows, mask.argmax(-1) if pool == "cls" else (positions * mask).argmax(-1)]


def pool_of(spec: Model, folder: Path | None) -> SentencePool:
    """Return the pooling in a trained model's description, or in the file of sentence-transformers. If neither has one,
    return the usual pooling for the model."""
    usual: SentencePool = "mean" if spec.pair or not spec.left_to_right else "last"
    trained = spec.source.get(SOURCE)
    if trained in POOLS:
        return trained
    return usual if folder is None else read_pool(folder) or usual


def read_pool(folder: Path) -> SentencePool | None:
    """Return the pooling in the file of sentence-transformers; None if there is no such file."""
    path = folder / FOLDER / "config.json"
    if not path.is_file():
        return None
    config = read_json(path)
    chosen = [pool for pool, name in FIELDS.items() if config.get(name)]
    enabled = [name for name, on in config.items() if name.startswith("pooling_mode") and on is True]
    if len(chosen) != 1 or len(enabled) != 1:
        raise ValueError(f"{path.parent}: the file enables {', '.join(enabled) or 'nothing'}; set pool")
    return chosen[0]
