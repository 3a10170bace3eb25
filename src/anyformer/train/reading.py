"""What there is to read, in one line, and how many tokens a model reads of records that have none: pictures, sound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anyformer.data import DataSplit, Splits
from anyformer.models import Model
from anyformer.objectives.objective import Objective
from anyformer.specs.part import walk

SHOWN = 10  # classes that are counted one by one
RAW = ("pixels", "samples")  # fields of a record that an embedding makes tokens of


def tokens_per_number(spec: Model, objective: Objective, split: DataSplit) -> float:
    """Tokens that the model reads for each number in the longest field of a record: 1 where that field has tokens,
    65 / 3,072 where a picture of 32 x 32 pixels in three colours becomes 64 patches and one more token."""
    if not split.fields.keys() & {*RAW}:
        return 1.0
    readers: Any = spec.readers
    return sum(tokens_read(reader.embedding, objective, split) for reader in readers) / max(split.tokens, 1)


def tokens_read(embedding: Any, objective: Objective, split: DataSplit) -> int:
    """Of all records together, by one embedding."""
    name = embedding.inputs[0]
    if name == "input_ids":
        return int(split.fields["input_ids"].ends[-1]) if "input_ids" in split.fields else 0
    if name not in ("input_values", "input_features") or "samples" not in split.fields:  # pictures, all of one size
        return len(split) * embedding.vectors(0)
    sizes = np.diff(split.fields["samples"].ends)  # (records,) samples of each
    if name == "input_features":
        sounds: Any = next(part for _, part in walk(objective) if hasattr(part, "hop"))
        sizes = np.full_like(sizes, sounds.seconds * sounds.rate) if sounds.form == "mel" else sizes
        sizes = sizes // sounds.hop  # frames of the spectrogram
    values, counts = np.unique(sizes, return_counts=True)
    return sum(embedding.vectors(value) * count for value, count in zip(values.tolist(), counts.tolist()))


def described_data(splits: Splits, labels: Sequence[str], rate: float) -> str:
    """One line: "data: train 90 (5,400 tokens; 45 happy, 45 sad), valid 10 (600 tokens; ...)". `rate` is the number of
    tokens for each number of a record."""
    found = []
    for name, split in splits.items():
        counts = class_counts(split, labels)
        classes = ", ".join(f"{count:,} {label}" for label, count in counts.items())
        if len(counts) > SHOWN:
            classes = f"{len(counts)} classes, {min(counts.values()):,} to {max(counts.values()):,} of each"
        found.append(f"{name} {len(split):,} ({round(split.tokens * rate):,} tokens{classes and '; '}{classes})")
    return f"data: {', '.join(found)}"


def class_counts(split: DataSplit, labels: Sequence[str]) -> dict[str, int]:
    """The records of each label; nothing where a record has no label of its own."""
    field = split.fields.get("label")
    if not labels or field is None or not field.scalar or field.dtype.kind not in "iu":
        return {}
    counts = np.bincount(field.read(0, len(split)), minlength=len(labels))
    return dict(zip(labels, counts.tolist()))
