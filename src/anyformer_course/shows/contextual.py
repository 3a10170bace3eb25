"""The encoder, layer by layer: every layer has the shape of its input, and its vectors contain more and more context.

A small BERT (trained for about a second) reads two texts that share a word. Before the first layer the shared word has
the same vector in both, after the layers it has not [Devlin et al. 2018].
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from anyformer.look.figures import new
from anyformer.specs.messages import quote
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._trained import STORIES, train


def example(
    text: str = "the dog chased the ball .", other: str = "the dog slept in the sun .", *, word: str = "dog",
    corpus: str = STORIES,
) -> Shown:  # fmt: skip
    """Compare the vectors of `word` in the two texts after every layer."""
    small = train("bert", corpus)
    places, word = [], small.words(word)[0]
    for each in (text, other):
        words = small.words(each)
        if word not in words:
            raise ValueError(f"the text {quote(each)} does not contain {word!r}")
        places.append(1 + words.index(word))
    ids = [torch.tensor([[1, *small.ids(each), 2]]) for each in (text, other)]
    with torch.no_grad():
        states = [small.model(input_ids=each, output_hidden_states=True).hidden_states for each in ids]
    rows, first = [], [each[0, place] for each, place in zip((run[0] for run in states), places)]
    for i, (one, two) in enumerate(zip(*states, strict=True)):
        a, b = one[0, places[0]], two[0, places[1]]
        rows.append([
            "input of layer 1" if i == 0 else f"output of layer {i}", f"{one.shape[1]} x {one.shape[2]}",
            float(F.cosine_similarity(a, b, dim=0)), float(F.cosine_similarity(a, first[0], dim=0)),
        ])  # fmt: skip

    def draw() -> Any:
        figure, axes = new(1, 1, 6.5, 3.2)
        labels = [row[0] for row in rows]
        axes[0, 0].plot(labels, [row[2] for row in rows], "o-", label=f"{word!r} in the two texts")
        axes[0, 0].plot(labels, [row[3] for row in rows], "s--", label=f"{word!r} and its input vector")
        axes[0, 0].set(ylim=(0, 1.05), title="cosine of two vectors")
        axes[0, 0].legend(frameon=False)
        return figure

    return Shown(
        f"Every layer maps {rows[0][1]} numbers to {rows[-1][1]}, so layers can be stacked. The vectors of {word!r} "
        "in the "
        f"two texts have a cosine of {rows[0][2]:.2f} before the first layer and {rows[-1][2]:.2f} after the last.",
        [Table(f"{text} / {other}", ("where", "shape", f"cosine of {word!r} in both texts",
                                     "cosine with its input vector"), rows)],
        draw,
    )  # fmt: skip
