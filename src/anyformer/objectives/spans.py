"""Spans of a text and the sentinels that replace them, without torch; see span_corruption.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def count_spans(size: int, rate: float, mean: float) -> tuple[int, int]:
    """Return how many of `size` tokens are removed, and in how many spans. At least one is removed and one kept."""
    noise = min(max(round(size * rate), 1), size - 1)
    return noise, min(max(round(noise / mean), 1), size - noise)


def draw_spans(size: int, rate: float, mean: float, random: np.random.Generator) -> np.ndarray:
    """(T,) True for removed tokens. Kept and removed pieces alternate, starting with a kept one."""
    if size < 2:
        return np.zeros(size, bool)
    noise, spans = count_spans(size, rate, mean)
    lengths = np.stack([pieces(size - noise, spans, random), pieces(noise, spans, random)], axis=1).ravel()
    return np.repeat(np.arange(2 * spans) % 2 == 1, lengths)


def pieces(total: int, number: int, random: np.random.Generator) -> np.ndarray:
    """Draw `number` lengths of at least 1 with the sum `total`; all divisions are equally likely."""
    cuts = np.sort(random.permutation(total - 1)[: number - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))


def corrupt(ids: np.ndarray, removed: np.ndarray, sentinels: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return source and target. If the text ends with a kept piece, the target ends with one more sentinel."""
    starts = removed & ~np.concatenate([[False], removed[:-1]])
    spans = int(starts.sum())
    last = spans if len(removed) and not removed[-1] else spans - 1
    if last >= len(sentinels):
        raise ValueError(f"{last + 1} spans but {len(sentinels)} sentinels: use shorter rows or longer spans")
    marks = np.asarray(sentinels)[np.maximum(np.cumsum(starts) - 1, 0)]  # (T,) sentinel of the last span so far
    source = np.where(starts, marks, ids)[~removed | starts]
    which = np.flatnonzero(removed)
    targets = np.arange(len(which)) + np.cumsum(starts[which])  # after the sentinels of this and earlier spans
    target = np.empty(len(which) + spans, ids.dtype)
    target[targets] = ids[which]
    first = np.flatnonzero(starts[which])
    target[targets[first] - 1] = marks[starts]
    return source, target if last < spans else np.append(target, sentinels[last])
