"""BERT's masking: 15 % of the tokens are chosen; of these 80 % become [MASK], 10 % a random token, 10 % stay.

The table shows one masking of your text. The shares are counted over many maskings of it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from anyformer.look.figures import new, plain
from anyformer.specs.field_types import Count
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._pieces import tokenizer
from anyformer_course.shows._trained import STORIES

LINE, DRAWN = 10, 60  # tokens of a line of the picture, and of the whole picture


def example(
    text: str = "the dog barked at the cat and the bird sang in the old tree by the river",
    *,
    rate: float = 0.15,
    mask: float = 0.8,
    random: float = 0.1,
    draws: Count = 2000,
    seed: int = 0,
) -> Shown:
    """Mask `rate` of the tokens; `mask` and `random` are the shares of [MASK] and of random tokens."""
    from anyformer.objectives.masked import Masked

    pieces = tokenizer(text)
    objective = Masked(rate=rate, mask=mask, random=random).ready(pieces)
    ids = np.array(pieces.encode(text))
    rng = np.random.default_rng(seed)
    first = objective.vary({"input_ids": ids}, rng)
    chosen = set(first["places"].tolist())
    before, after = ([pieces.token(i) for i in row.tolist()] for row in (ids, first["input_ids"]))
    rows = [
        [i, before[i], after[i], before[i] if i in chosen else "", kind(before[i], after[i]) if i in chosen else ""]
        for i in range(len(ids))
    ]
    counts = dict.fromkeys(("[MASK]", "random", "same"), 0)
    examples: dict[str, list[Any]] = {}
    known = {*text.split(), *STORIES.split()} - {"."}
    for _ in range(draws):
        record = objective.vary({"input_ids": ids}, rng)
        read = [pieces.token(i) for i in record["input_ids"].tolist()]
        for place in record["places"].tolist():
            counts[each := kind(before[place], read[place])] += 1
            if each == "[MASK]" or read[place] in known:
                where = place == len(before) - 2  # the last word, if it is drawn
                if each not in examples or (where and not examples[each][3]):
                    examples[each] = [each, " ".join(read[1:-1]), before[place], where]
    total = sum(counts.values())

    def draw() -> Any:
        lines = math.ceil(min(DRAWN, len(rows)) / LINE)
        figure, axes = new(1, 1, 9, 0.5 + 1.2 * lines)
        axis = axes[0, 0]
        colors = {"[MASK]": "#9ecae1", "random": "#fdae6b", "same": "#a1d99b", "": "white"}
        for i, row in enumerate(rows[:DRAWN]):
            line, x = divmod(i, LINE)
            for y, word, shade in ((0, row[1], "white"), (-1, row[2], colors[row[4]])):
                box = {"facecolor": shade, "edgecolor": "0.6", "boxstyle": "round"}
                axis.text(x, y - 2.6 * line, plain(word), ha="center", va="center", fontsize=9, bbox=box)
        axis.set_xlim(-0.6, min(LINE, len(rows)) - 0.4)
        axis.set_ylim(-1.6 - 2.6 * (lines - 1), 0.6)
        axis.set_title("above: the text; below: what BERT reads (blue [MASK], orange random, green same)", fontsize=9)
        axis.set_axis_off()
        return figure

    usable = sum(token not in ("[CLS]", "[SEP]") for token in before)
    return Shown(
        f"{len(chosen)} of {amount(len(ids), 'token')} {'is' if len(chosen) == 1 else 'are'} predicted; over "
        f"{draws:,} maskings, of the chosen tokens "
        + ", ".join(f"{count / total:.1%} are {name}" for name, count in counts.items()),
        [
            Table("one masking of each kind", ("kind", "BERT reads", "and predicts"), [
                examples[name][:3] for name in counts if name in examples
            ]),
            Table("the first masking", ("position", "token", "input", "label", "kind"), rows),
            Table(
                f"{draws:,} maskings", ("kind", "count", "share"),
                [["chosen", total, total / draws / usable], *([n, c, c / total] for n, c in counts.items())],
            ),
        ],
        draw,
    )  # fmt: skip


def kind(before: str, after: str) -> str:
    return "[MASK]" if after == "[MASK]" else "same" if before == after else "random"
