"""Is a sentence about a film kind or not (SST-2): a small encoder from scratch."""

from __future__ import annotations

from anyformer.recipes import sst2
from anyformer.recipes._encoder import from_scratch
from anyformer.train.run import Run


def run(data: str = "data") -> Run:
    return from_scratch(sst2.run(data), steps=4000)
