"""Answers that are spans of a paragraph (a part of SQuAD 1.1): a small encoder from scratch."""

from __future__ import annotations

from anyformer.recipes import squad
from anyformer.recipes._encoder import from_scratch
from anyformer.train.run import Run


def run(data: str = "data") -> Run:
    return from_scratch(squad.run(data))
