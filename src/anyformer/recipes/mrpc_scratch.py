"""Do two sentences say the same (MRPC): a small encoder from scratch, which has little to learn it from."""

from __future__ import annotations

from anyformer.recipes import mrpc
from anyformer.recipes._encoder import from_scratch
from anyformer.train.run import Run


def run(data: str = "data") -> Run:
    return from_scratch(mrpc.run(data), steps=1000)
