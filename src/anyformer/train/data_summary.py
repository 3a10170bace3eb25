"""A one-line summary of the data, and the number of tokens of images and audio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anyformer.data import DataSplit, Splits
from anyformer.models import Model
from anyformer.objectives.objective import Objective
from anyformer.objectives.recordings import Sounds
from anyformer.specs.part import walk

MAX_CLASSES = 10  # for more classes, only the smallest and largest count are shown
RAW = ("pixels", "samples")  # record fields that an embedding turns into tokens


def tokens_per_number(spec: Model, objective: Objective, split: DataSplit) -> float:
    """Return the tokens per number in the longest field of a record: 1 for text, 65 / 3,072 for an RGB image of 32 x 32
    pixels that becomes 64 patches and a class token."""
    if not split.fields.keys() & {*RAW}:
        return 1.0
    readers: Any = spec.readers
    return sum(tokens_read(reader.embedding, objective, split) for reader in readers) / max(split.tokens, 1)


def tokens_read(embedding: Any, objective: Objective, split: DataSplit) -> int:
    """Return the number of tokens that one embedding outputs for all records."""
    name = embedding.inputs[0]
    if name == "input_ids":
        return int(split.fields["input_ids"].ends[-1]) if "input_ids" in split.fields else 0
    if name not in ("input_values", "input_features") or "samples" not in split.fields:  # pictures, all of one size
        return len(split) * embedding.vectors(0)
    sizes = np.diff(split.fields["samples"].ends)  # (records,) number of samples
    if name == "input_features":
        sounds = next(part for _, part in walk(objective) if isinstance(part, Sounds))
        sizes = np.full_like(sizes, sounds.seconds * sounds.rate) if sounds.form == "mel" else sizes
        sizes = sizes // sounds.hop  # frames of the spectrogram
    values, counts = np.unique(sizes, return_counts=True)
    return sum(embedding.vectors(value) * count for value, count in zip(values.tolist(), counts.tolist()))


def describe_data(splits: Splits, labels: Sequence[str], rate: float) -> str:
    """One line: "data: train 90 (5,400 tokens; 45 happy, 45 sad), valid 10 (600 tokens; ...)". `rate` is the
    number of tokens per number of a record."""
    lines = []
    for name, split in splits.items():
        counts = class_counts(split, labels)
        classes = ", ".join(f"{count:,} {label}" for label, count in counts.items())
        if len(counts) > MAX_CLASSES:
            classes = f"{len(counts)} classes, {min(counts.values()):,} to {max(counts.values()):,} of each"
        lines.append(f"{name} {len(split):,} ({round(split.tokens * rate):,} tokens{classes and '; '}{classes})")
    return f"data: {', '.join(lines)}"


def class_counts(split: DataSplit, labels: Sequence[str]) -> dict[str, int]:
    """Return the number of records per label; empty if records have no label."""
    field = split.fields.get("label")
    if not labels or field is None or not field.scalar or field.dtype.kind not in "iu":
        return {}
    counts = np.bincount(field.read(0, len(split)), minlength=len(labels))
    return dict(zip(labels, counts.tolist()))
