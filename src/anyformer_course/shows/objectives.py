"""Pretraining objectives side by side: next word, masked words, prefix and span corruption, on your text.

The kind of Transformer determines what can be predicted: a decoder sees the past, an encoder sees both sides of a gap,
an encoder-decoder reads one text and writes another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer.look.figures import new
from anyformer.objectives.spans import corrupt, draw_spans
from anyformer.runtime.visibility import Rows
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table
from anyformer_course.shows.mask import kinds
from anyformer_course.words import split


def example(
    text: str = "Thank you for inviting me to your party last week .", *, rate: float = 0.15,
    prefix: int | None = None, seed: int = 0,
) -> Shown:  # fmt: skip
    """Count what each objective reads, sees and predicts. `rate`: share of hidden words; `prefix`: words before the
    first predicted word (if None, 4 or all but the last)."""
    words = split(text)
    T = len(words)
    if T < 2:
        raise ValueError("write at least two words: one is read and one is predicted")
    prefix = min(4, T - 1) if prefix is None else prefix
    if not 0 < rate < 1 or not 0 < prefix < T:
        raise ValueError(f"rate must be between 0 and 1, and prefix from 1 to {T - 1}")
    draws = torch.Generator().manual_seed(seed)
    hidden = sorted(torch.randperm(T, generator=draws)[: max(round(rate * T), 1)].tolist())
    removed = draw_spans(T, rate, 3.0, np.random.default_rng(seed))
    sentinels = [f"<{letter}>" for letter in "XYZABCDEFGHI"]
    names = [*words, *sentinels]
    source, target = ([names[i] for i in each] for each in corrupt(np.arange(T), removed, range(T, T + len(sentinels))))
    masked = ["[MASK]" if i in hidden else word for i, word in enumerate(words)]
    full, causal, prefixed = (pairs(name, T, prefix) for name in ("full", "causal", "prefix"))
    S = len(source)
    spans = torch.zeros(S + len(target), S + len(target), dtype=torch.bool)
    spans[:, :S] = True  # encoder and decoder see the whole source
    spans[S:, S:] = pairs("causal", len(target), 1)
    # name: (visible pairs, positions that predict, tokens); each prediction of T5 reads the target before it
    kinds_of = {
        "next word (decoder: GPT)": (causal, list(range(T - 1)), words),
        "masked words (encoder: BERT)": (full, hidden, masked),
        "next word after a prefix (prefix LM)": (prefixed, list(range(prefix - 1, T - 1)), words),
        "span corruption (encoder-decoder: T5)": (
            spans,
            list(range(S, S + len(target))),
            [*source, "<start>", *target[:-1]],
        ),
    }
    rows = []
    for name, (visible, predicts, tokens) in kinds_of.items():
        is_word = torch.tensor([token in words for token in tokens])
        seen = visible[predicts][:, is_word].sum(-1).float().mean()
        rows.append([name, len(tokens), len(predicts), float(seen), int(visible.sum())])

    def draw() -> Any:
        figure, axes = new(4, 1, 12, 3.6)
        for axis, (name, (visible, predicts, tokens)) in zip(axes[0], kinds_of.items(), strict=True):
            shade = visible.float()
            shade[predicts] *= 2
            axis.imshow(shade.numpy(), cmap="Blues", vmin=0, vmax=2.6, interpolation="nearest")
            axis.set_title(name.replace(" (", "\n("), fontsize=9)
            starred = [f"{token} *" if i in predicts else token for i, token in enumerate(tokens)]
            axis.set_yticks(range(len(tokens)), starred, fontsize=7)
            axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=7)
        figure.suptitle("a row sees the blue columns; a dark row (*) is a prediction", fontsize=9)
        return figure

    return Shown(
        f"In {T} words the decoder predicts {rows[0][2]}, the encoder {rows[1][2]}, the encoder-decoder writes "
        f"{amount(rows[3][2], 'token')}. A prediction sees {rows[0][3]:.1f}, {rows[1][3]:.1f} and {rows[3][3]:.1f} "
        "real "
        f"words on average.",
        [
            Table("one text, four objectives", ("objective", "tokens", "predictions", "real words seen by a prediction",
                  "visible pairs"), rows),
            Table("what is read and predicted", ("objective", "reads", "predicts"), [
                ["next word", " ".join(words[:-1]), " ".join(words[1:])],
                ["masked words", " ".join(masked), " ".join(words[i] for i in hidden)],
                ["prefix", " ".join(words[:prefix]) + " | " + " ".join(words[prefix:-1]), " ".join(words[prefix:])],
                ["span corruption", " ".join(source), " ".join(target)],
            ]),
        ],
        draw,
    )  # fmt: skip


def pairs(mask: str, length: int, size: int) -> Tensor:
    """(T, T) True for pairs of positions that a mask of the library allows."""
    index = torch.arange(length)
    start = torch.zeros(1, 1, dtype=torch.long)
    return kinds(size)[mask].allows(start, index[:, None], index[None], Rows()).expand(length, length)
