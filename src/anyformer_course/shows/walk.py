"""The walk of a prompt through the residual stream: words, ids, vectors, positions, attention, feed-forward, scores.

A small GPT (two layers, trained for about a second on a few fairy tales and your text) reads the prompt. After every
step the table shows how long the vector of one word is, what the step added, and which next word it would predict.
"""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer.look.figures import new
from anyformer.specs.field_types import Count
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._tales import train_on_tales


def example(text: str = "once upon a time", *, word: int = -1, top: Count = 5) -> Shown:
    """Follow the vector of word number `word` (from 0; -1 is the last) and predict the word after it."""
    small, words = train_on_tales(text)
    if not -len(words) <= word < len(words):
        raise ValueError(f"word is {word}, but the text has {len(words)} words (0 to {len(words) - 1}, or -1)")
    at = word % len(words)
    model, ids = small.model, small.ids(" ".join(words))
    names = [f"decoder.layers.{i}.{step}" for i in range(2) for step in ("attention", "feedforward")]
    with torch.no_grad():
        # <start> has position 0
        run = af.trace(model, keep=("decoder.input", *names), input_ids=torch.tensor([[1, *ids]]))
        embedded = model.embedding.tokens.weight[ids]  # (T, D)
        states = [embedded, run["decoder.input"][0, 1:], *(run[name][0, 1:] for name in names)]
        chances = [model.head.out(model.decoder.norm(state)).softmax(-1) for state in states]  # (T, V) each
    steps = ["token embedding", "+ position", "+ attention 1", "+ feed-forward 1", "+ attention 2", "+ feed-forward 2"]
    rows, before = [], torch.zeros_like(embedded)
    for step, state, chance in zip(steps, states, chances, strict=True):
        p, best = chance[at].max(-1)
        added = float((state - before)[at].norm())
        rows.append([step, float(state[at].norm()), added, small.tokens[int(best)], float(p)])
        before = state
    best = chances[-1][at].topk(min(top, len(small.tokens)))
    logits = run.output.logits[0, at + 1]
    scores = [[small.tokens[i], float(logits[i]), p] for p, i in zip(best.values.tolist(), best.indices.tolist())]
    tokens = [[i + 1, each, number, *embedded[i, :3].tolist()] for i, (each, number) in enumerate(zip(words, ids))]

    def draw() -> Any:
        figure, axes = new(2, 1, 12, 4)
        most = torch.stack([chance.max(-1).values for chance in chances])  # (steps, T)
        axes[0, 0].imshow(most.numpy(), aspect="auto", vmin=0, vmax=1, cmap="Blues")
        for i, chance in enumerate(chances):
            for j, guess in enumerate(chance.argmax(-1).tolist()):
                color = "white" if most[i, j] > 0.6 else "black"
                axes[0, 0].text(j, i, small.tokens[guess], ha="center", va="center", fontsize=7, color=color)
        axes[0, 0].set_yticks(range(len(steps)), steps, fontsize=8)
        axes[0, 0].set_xticks(range(len(words)), words, fontsize=8, rotation=45)
        axes[0, 0].set_title("most likely next word if the head read the stream here", fontsize=9)
        axes[0, 1].barh([row[0] for row in scores][::-1], [row[2] for row in scores][::-1])
        axes[0, 1].set_title(f"next word after '{words[at]}': probability", fontsize=9)
        return figure

    return Shown(
        f"after {' '.join(words[: at + 1])!r} the model predicts {scores[0][0]!r} with probability {scores[0][2]:.2f}; "
        f"after the token embedding alone its guess would be {rows[0][3]!r}.",
        [
            Table("1. words become ids, ids become rows of the matrix W_E (48 numbers, the first 3 shown)",
                  ("position", "word", "id", "0", "1", "2"), tokens),
            Table(f"2. the residual stream of {words[at]!r}, step by step",
                  ("step", "length of the vector", "length of what was added", "next word if read here",
                   "probability"), rows),
            Table("3. scores of the next word", ("word", "score (logit)", "probability"), scores),
        ],
        draw,
    )  # fmt: skip
