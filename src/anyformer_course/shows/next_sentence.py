"""Next sentence prediction: pairs of sentences, half of them from the same text, half with a random second sentence.

Write your own text with one sentence per line; an empty line begins a second text.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anyformer.look.figures import new, plain
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._pieces import tokenizer

TEXTS = "the dog dug a deep hole .\nhe found an old bone .\nhe ran to the river .\n\n" + (
    "she likes birds .\na bird sang in the tree .\nit flew over the river ."
)


def example(text: str = TEXTS, *, next_rate: float = 0.5, pairs: int = 6, draws: int = 1000, seed: int = 0) -> Shown:
    """Draw pairs "[CLS] A [SEP] B [SEP]" and their labels. `next_rate` is the share of real successors."""
    from anyformer.objectives.sentences import FOLLOWS, MaskedAndNext

    documents = [each for each in text.split("\n\n") if each.strip()]
    if len(documents) < 2:
        raise ValueError("random sentences need a second text; separate two texts with an empty line")
    pieces = tokenizer(*documents)
    objective = MaskedAndNext(length=64, short=0.0, next_rate=next_rate).ready(pieces)
    records = [record for each in documents for record in objective.encode({"text": each}, pieces)]
    rng = np.random.default_rng(seed)
    rows, follows = [], 0
    for i in range(draws):
        one, other = records[i % len(records)], records[(i + 1) % len(records)]
        first, second, label = objective.pair(one, other, rng)
        follows += label == FOLLOWS
        if i < pairs:
            rows.append(
                [
                    pieces.decode(first.tolist()),
                    pieces.decode(second.tolist()),
                    "is next" if label == FOLLOWS else "not next",
                    len(first) + len(second) + 3,
                ]
            )
    shares = [("is next", follows / draws), ("not next", 1 - follows / draws)]

    def draw() -> Any:
        figure, axes = new(1, 1, 9, 0.3 + 0.4 * len(rows))
        for y, (first, second, label, _) in enumerate(rows):
            shade = "#cfe3f5" if label == "is next" else "#fbe0c4"
            axes[0, 0].text(0, -y, plain(first), ha="right", va="center", fontsize=9)
            box = {"facecolor": shade, "edgecolor": "0.6", "boxstyle": "round"}
            axes[0, 0].text(0.15, -y, plain(f"{label}: {second}"), va="center", fontsize=9, bbox=box)
        axes[0, 0].set_xlim(-2.8, 3.8)
        axes[0, 0].set_ylim(0.6 - len(rows), 0.6)
        axes[0, 0].set_axis_off()
        return figure

    return Shown(
        f"of {draws:,} pairs, {follows / draws:.1%} are two parts of one text; the others end with a random sentence",
        [
            Table("pairs", ("A", "B", "label", "tokens"), rows),
            Table(f"{draws:,} pairs", ("label", "share"), shares),
        ],
        draw,
    )
