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
from anyformer_course.shown import Shown, Table
from anyformer_course.shows.mask import kinds
from anyformer_course.words import split


def example(
    text: str = "Thank you for inviting me to your party last week .", *, rate: float = 0.15, prefix: int = 4,
    seed: int = 0,
) -> Shown:  # fmt: skip
    """Count what each objective reads, sees and predicts. `rate`: share of hidden words; `prefix`: words before it."""
    words = split(text)
    T = len(words)
    if not 0 < rate < 1 or not 0 < prefix < T:
        raise ValueError(f"rate must be between 0 and 1, and prefix from 1 to {T - 1}")
    draws = torch.Generator().manual_seed(seed)
    hidden = sorted(torch.randperm(T, generator=draws)[: max(round(rate * T), 1)].tolist())
    removed = draw_spans(T, rate, 3.0, np.random.default_rng(seed))
    source, target = (len(each) for each in corrupt(np.arange(T), removed, range(T, 2 * T)))
    # (who, visible pairs, positions that predict, visible words per prediction, tokens read)
    full, causal, prefixed = (pairs(name, T, prefix) for name in ("full", "causal", "prefix"))
    encoder = torch.zeros(source + target, source + target, dtype=torch.bool)
    encoder[:source, :source] = True
    encoder[source:, :source] = True
    encoder[source:, source:] = pairs("causal", target, 1)
    kinds_of = {
        "next word (decoder: GPT)": (causal, list(range(T - 1)), T),
        "masked words (encoder: BERT)": (full, hidden, T),
        "next word after a prefix (prefix LM)": (prefixed, list(range(prefix - 1, T - 1)), T),
        "span corruption (encoder-decoder: T5)": (encoder, list(range(source, source + target)), source + target),
    }
    rows = []
    for name, (visible, predicts, tokens) in kinds_of.items():
        seen = visible[predicts].sum(-1).float().mean()
        rows.append([name, tokens, int(visible.sum()), len(predicts), len(predicts) / tokens, float(seen)])

    def draw() -> Any:
        figure, axes = new(4, 1, 12, 3.6)
        for axis, (name, (visible, predicts, _)) in zip(axes[0], kinds_of.items(), strict=True):
            shade = visible.float()
            shade[predicts] *= 2
            axis.imshow(shade.numpy(), cmap="Blues", vmin=0, vmax=2.6, interpolation="nearest")
            axis.set_title(name.replace(" (", "\n("), fontsize=9)
            if len(visible) == T:
                axis.set_yticks(range(T), [f"{w} *" if i in predicts else w for i, w in enumerate(words)], fontsize=7)
                axis.set_xticks(range(T), words, rotation=90, fontsize=7)
        figure.suptitle("rows see the blue columns; dark rows (*) predict a word", fontsize=9)
        return figure

    return Shown(
        f"From {T} words the decoder learns {rows[0][3]} predictions, the encoder {rows[1][3]}; a prediction sees "
        f"{rows[0][5]:.1f} and {rows[1][5]:.1f} positions on average.",
        [
            Table("one text, four objectives", ("objective", "tokens", "visible pairs", "predictions",
                  "predictions per token", "positions seen by a prediction"), rows),
            Table("what is hidden", ("objective", "words"), [
                ["masked words", " ".join("[MASK]" if i in hidden else w for i, w in enumerate(words))],
                ["prefix", " ".join(words[:prefix]) + " | " + " ".join(words[prefix:])],
                ["span corruption", " ".join("_" if r else w for w, r in zip(words, removed.tolist()))],
            ]),
        ],
        draw,
    )  # fmt: skip


def pairs(mask: str, length: int, size: int) -> Tensor:
    """(T, T) True for pairs of positions that a mask of the library allows."""
    index = torch.arange(length)
    start = torch.zeros(1, 1, dtype=torch.long)
    return kinds(size)[mask].allows(start, index[:, None], index[None], Rows()).expand(length, length)
