"""Span corruption: T5 reads a text in which spans are replaced by sentinels, and writes the missing spans.

Give the spans that you want to remove, or none, and they are drawn as in T5: 15 % of the words, in spans of 3 on
average [Raffel et al. 2020].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anyformer.look.figures import new, plain
from anyformer.objectives.spans import corrupt, draw_spans
from anyformer.specs.field_types import OneOrMore
from anyformer.specs.messages import amount, quote
from anyformer_course.shown import Shown, Table
from anyformer_course.words import split

TEXT = "Thank you for inviting me to your party last week ."


def example(text: str = TEXT, *, spans: str = "", rate: float = 0.15, mean: OneOrMore = 3.0, seed: int = 0) -> Shown:
    """Replace the `spans` (separated by " / "). If there are none, draw spans of `mean` words, `rate` of the text."""
    words = split(text, limit=60)
    if len(words) < 2:
        raise ValueError("write at least two words: one is removed and one is kept")
    if spans.strip():
        removed = find(words, spans)
    else:
        removed = draw_spans(len(words), rate, mean, np.random.default_rng(seed))
    sentinels = list(range(len(words), 2 * len(words)))
    source, target = corrupt(np.arange(len(words)), removed, sentinels)
    names = [*words, *(f"<{chr(88 + i)}>" if i < 3 else f"<extra_id_{i}>" for i in range(len(words)))]
    reads, writes = ([names[i] for i in each] for each in (source, target))

    def draw() -> Any:
        figure, axes = new(1, 1, 10, 2.4)
        axis = axes[0, 0]
        for y, (label, row) in enumerate((("text", words), ("encoder reads", reads), ("decoder writes", writes))):
            axis.text(-0.3, -y, label, ha="right", va="center", fontsize=9)
            x = 0.0
            for i, word in enumerate(row):
                hidden = y == 0 and removed[i]
                color = "#ffd9a0" if word in names[len(words) :] else "#f6b7b0" if hidden or y == 2 else "#dfe8f5"
                axis.text(x, -y, plain(word), va="center", fontsize=9, bbox={"fc": color, "ec": "none", "pad": 2})
                x += 0.012 * (len(word) + 2.5) * 10
        axis.set(xlim=(-1.6, max(10.0, 0.12 * sum(len(word) + 2.5 for word in words))), ylim=(-2.6, 0.6))
        axis.set_axis_off()
        return figure

    number, count = int(removed.sum()), len(writes) - int(removed.sum()) - (0 if removed[-1] else 1)
    return Shown(
        f"{number} of {len(words)} words {'is' if number == 1 else 'are'} removed, in {amount(count, 'span')}. The "
        f"encoder reads {len(reads)} tokens, the "
        f"decoder writes {len(writes)} instead of {len(words)}.",
        [
            Table("tokens", ("side", "tokens", "text"), [
                ["text", len(words), " ".join(words)], ["encoder reads", len(reads), " ".join(reads)],
                ["decoder writes", len(writes), " ".join(writes)],
            ]),
            Table("words", ("word", "removed"), [[w, "yes" if r else "no"] for w, r in zip(words, removed.tolist())]),
        ],
        draw,
    )  # fmt: skip


def find(words: list[str], spans: str) -> np.ndarray:
    """Return True for the words of the spans, each at its first place after the span before."""
    removed, start = np.zeros(len(words), bool), 0
    for span in spans.split("/"):
        wanted = span.split()
        places = (i for i in range(start, len(words)) if words[i : i + len(wanted)] == wanted)
        if not wanted or (place := next(places, None)) is None:
            raise ValueError(f"the text has no span {quote(span.strip())} after the span before it")
        removed[place : place + len(wanted)] = True
        start = place + len(wanted) + 1  # one kept word between two spans
    return removed
