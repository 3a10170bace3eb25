"""LayerNorm and BatchNorm: the same numbers, normalized along different axes.

LayerNorm gives each word's vector mean 0 and variance 1. BatchNorm gives each channel mean 0 and variance 1 over all
words of all texts, so the result of a text depends on the other texts of the batch.
"""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer.look.figures import heat_maps
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._small import module
from anyformer_course.table import tiny
from anyformer_course.words import label_rows, vectors


def example(
    text: str = "the cat sat down / my dog barked / rain fell", *, width: int = 6, eps: float = 1e-5, seed: int = 0
) -> Shown:
    """Normalize texts separated by "/" with LayerNorm, RMSNorm and BatchNorm; then replace the last text."""
    texts = [each.strip() for each in text.split("/") if each.strip()]
    if len(texts) < 2:
        raise ValueError("give at least two texts, separated by ' / ', so that there is a batch")
    pairs = [vectors(each, width, seed) for each in texts]
    words = [word for each, _ in pairs for word in each]
    x = torch.cat([3 * vector + 1 for _, vector in pairs])  # (words, D), not normalized
    own = len(pairs[0][0])  # words of the first text
    other = x.clone()
    other[-len(pairs[-1][0]) :] += 5.0  # a different last text
    kinds = {
        "LayerNorm": af.parts.LayerNorm(eps=eps), "RMSNorm": af.parts.RMSNorm(eps=eps),
        "BatchNorm": af.parts.BatchNorm(eps=eps),
    }  # fmt: skip
    rows, results = [["none", *spread(x), 0.0]], {"not normalized": x}
    with torch.no_grad():
        for name, part in kinds.items():
            layer = module(part, width, seed).train()  # in training BatchNorm uses the statistics of the batch
            results[name] = y = layer(x)
            rows.append([name, *spread(y), float((layer(other)[:own] - y[:own]).abs().max())])
        by_hand = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + eps).sqrt()
    error = float((by_hand - results["LayerNorm"]).abs().max())

    def draw() -> Any:
        return heat_maps(list(results.values()), list(results), "rows are words, columns are channels", words,
                         columns_are_tokens=False)  # fmt: skip

    return Shown(
        f"If the last text changes, LayerNorm's result for {texts[0]!r} changes by {rows[1][-1]:.2f} and BatchNorm's "
        f"by {rows[3][-1]:.2f}. (x - mean) / sqrt(variance + eps) by hand differs from LayerNorm by {tiny(error)}.",
        [
            Table(
                f"{len(words)} words of {len(texts)} texts, {width} channels: largest |mean| of a word, its deviation "
                "from the least to the largest, the same of a channel, and the change by another text",
                ("norm", "word: mean", "deviation", "to", "channel: mean", "deviation", "to", "change"),
                rows,
            ),
            Table("LayerNorm", ("word", *map(str, range(width))), label_rows(words, results["LayerNorm"])),
            Table("BatchNorm", ("word", *map(str, range(width))), label_rows(words, results["BatchNorm"])),
        ],
        draw,
    )  # fmt: skip


def spread(x: torch.Tensor) -> list[float]:
    """Return the largest mean, and the least and largest deviation, of words and then of channels."""
    found: list[float] = []
    for axis in (1, 0):
        deviation = x.std(axis, correction=0)
        found += [float(x.mean(axis).abs().max()), float(deviation.min()), float(deviation.max())]
    return found
