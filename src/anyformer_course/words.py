"""Words of a text and a vector for each: equal words have equal vectors."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `split` does not need torch
    from torch import Tensor

LIMIT = 12  # words; larger tables do not fit on a page


def split(text: str, limit: int = LIMIT) -> list[str]:
    words = text.split()
    if not words:
        raise ValueError("the text is empty; write a few words")
    if len(words) > limit:
        raise ValueError(f"the text has {len(words)} words; this example shows at most {limit}")
    return words


def read_number(text: str) -> float:
    """Convert a word to a number from -1e6 to 1e6; larger numbers, "nan" and "inf" are mistakes."""
    value = float(text)
    if not abs(value) <= 1e6:
        raise ValueError(f"{text!r} is not a number from -1e6 to 1e6")
    return value


def vectors(text: str, width: int, seed: int = 0) -> tuple[list[str], Tensor]:
    """Return the words (T) and their vectors (T, D). A word's vector depends on its letters and the seed only."""
    import torch

    words = split(text)
    if not 1 <= width <= 4096:
        raise ValueError(f"width is {width}; use 1 to 4096")
    seeds = [int.from_bytes(hashlib.sha256(f"{seed} {word}".encode()).digest()[:7], "big") for word in words]
    return words, torch.stack([torch.randn(width, generator=torch.Generator().manual_seed(each)) for each in seeds])


def label_rows(words: list[str], matrix: Tensor) -> list[list[Any]]:
    """Return the rows of a table: each word followed by its row of the matrix (T, N)."""
    return [[word, *row] for word, row in zip(words, matrix.tolist(), strict=True)]
