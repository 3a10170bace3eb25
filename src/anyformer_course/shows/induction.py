"""An induction head by hand: find the last time this word occurred, and predict the word that followed it.

Two heads are enough. The first copies the word before into each position; the second compares the current word with
these copies, so it attends to positions that come after an earlier copy of the current word [Olsson et al. 2022].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.look.figures import heat_maps
from anyformer_course.shown import Shown, Table
from anyformer_course.words import split

TEXT = "the wizard saw a king and the wizard saw a"


def example(text: str = TEXT, *, layers: int = 2, sharpness: float = 8.0) -> Shown:
    """Predict each next word of `text`. With `layers=1` the head compares words directly and finds only copies."""
    if layers not in (1, 2):
        raise ValueError(f"layers is {layers}; it must be 1 or 2")
    words = split(text, 20)
    if len(words) < 3:
        raise ValueError("the text has fewer than 3 words; an earlier copy needs more")
    vocabulary = list(dict.fromkeys(words))
    x = torch.eye(len(vocabulary))[[vocabulary.index(word) for word in words]]  # (T, V), one-hot
    first, second = heads(x, layers, sharpness)
    chances = second @ x  # (T, V): the second head writes the word that it attends to
    rows, hits, asked = [], 0, 0
    for i, word in enumerate(words):
        p, best = chances[i].max(-1)
        known = word in words[:i]
        follower = words[i + 1] if i + 1 < len(words) else None
        guess = vocabulary[int(best)]
        if known and follower:
            asked, hits = asked + 1, hits + (guess == follower)
        rows.append([i, word, known, words[int(second[i].argmax())], guess, float(p), follower])
    last = rows[-1]

    def draw() -> Any:
        names = ["head 1: the word before"] if layers == 2 else ["no first layer"]
        return heat_maps([first, second], [*names, f"head {layers}: after an earlier copy" if layers == 2 else
                         "one layer: the copies themselves"], "weights of the two heads", words, (0, 1))  # fmt: skip

    guess = "" if last[2] else f", a guess, because {words[-1]!r} did not occur before"
    return Shown(
        f"after {words[-1]!r} the prediction is {last[4]!r} with probability {last[5]:.2f}{guess}; of {asked} words "
        f"that occurred before, {hits} are followed by the predicted word.",
        [Table("every position", ("position", "word", "occurred before", "attends most to", "predicts",
                                  "probability", "next word"), rows)],
        draw,
    )  # fmt: skip


def heads(x: Tensor, layers: int, sharpness: float) -> tuple[Tensor, Tensor]:
    """Return the weights (T, T) of both heads for one-hot words x (T, V)."""
    length = len(x)
    first = torch.eye(length) if layers == 1 else torch.eye(length).roll(1, 0).tril()  # row i: position i - 1
    copied = first @ x  # the word before each position; zero at position 0
    scores = sharpness * (x @ copied.T)  # current word against the copied words
    later = torch.ones(length, length).triu(1).bool()
    return first, scores.masked_fill(later, float("-inf")).softmax(-1)
