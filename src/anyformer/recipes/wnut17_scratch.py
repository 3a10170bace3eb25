"""New and rare names in short messages (WNUT-17): a small encoder from scratch."""

from __future__ import annotations

from anyformer.recipes import wnut17
from anyformer.recipes._encoder import from_scratch
from anyformer.train.run import Run


def run(data: str = "data") -> Run:
    return from_scratch(wnut17.run(data), steps=1500)
