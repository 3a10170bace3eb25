"""The probability of a text, word by word: p(z) = p(z1) p(z2 | z1) p(z3 | z1, z2) ...

A small decoder learns the text. One pass with a causal mask gives all factors at once (training); one pass per word
gives the same numbers (generation), but needs as many passes as words.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.look import figures
from anyformer_course.shown import Shown, Table
from anyformer_course.table import tiny
from anyformer_course.shows._small import decoder, number
from anyformer_course.words import split


def example(text: str = "the detective investigated the murder", *, steps: int = 12, seed: int = 0) -> Shown:
    """Train for `steps` steps, then compute the probability of the text in one pass and word by word."""
    if not 0 <= steps <= 200:
        raise ValueError(f"steps is {steps}; it must be from 0 to 200")
    words = split(text)
    vocabulary, ids = number(["<start>", *words])
    model = af.build(decoder(len(vocabulary), width=32), seed=seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        loss = F.cross_entropy(model(input_ids=ids).logits[0, :-1], ids[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        at_once = model(input_ids=ids).logits[0, :-1].softmax(-1)  # (T, V)
        one_by_one = torch.stack(
            [model(input_ids=ids[:, : i + 1]).logits[0, -1].softmax(-1) for i in range(len(words))]
        )
    factors = at_once.gather(1, ids[0, 1:, None])[:, 0]
    error = float((at_once - one_by_one).abs().max())
    total = float(factors.log().sum())
    products = factors.cumprod(0)

    def draw() -> Any:
        figure, axes = figures.new(2, 1, 9, 3.4)
        axes[0, 0].bar(range(len(words)), factors.tolist())
        axes[0, 0].set_xticks(range(len(words)), words, rotation=45, fontsize=8)
        axes[0, 0].set_title("p(word | words before it)", fontsize=10)
        axes[0, 1].imshow(at_once.numpy(), vmin=0, vmax=1, cmap="Blues", aspect="auto")
        axes[0, 1].set_xticks(range(len(vocabulary)), vocabulary, rotation=45, fontsize=7)
        axes[0, 1].set_yticks(range(len(words)), [f"after {w}" for w in ["<start>", *words[:-1]]], fontsize=7)
        axes[0, 1].set_title("distribution over the vocabulary", fontsize=10)
        return figure

    return Shown(
        f"p(text) = {math.exp(total):.2e}, log p = {total:.2f}; one pass and {len(words)} passes differ by at most "
        f"{tiny(error)}.",
        [
            Table(
                "factors", ("word", "p(word | before)", "product so far", "most likely word here", "its probability"),
                [
                    [word, float(factors[i]), float(products[i]), vocabulary[int(row.argmax())], float(row.max())]
                    for i, (word, row) in enumerate(zip(words, at_once, strict=True))
                ],
            ),
            Table("passes", ("mode", "passes", "words read"), [
                ["all at once (training)", 1, len(words)],
                ["one by one (generation)", len(words), len(words) * (len(words) + 1) // 2],
            ]),
        ],
        draw,
    )  # fmt: skip
