"""The next word: probabilities of a small GPT after your words, and the likelihood of the text.

The model learns a few dozen sentences in about a second. `corpus` replaces them with lines of your own.
"""

from __future__ import annotations

import torch

from anyformer.look.figures import bars
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._trained import STORIES, train


def example(
    text: str = "the dog chased the", *, context: int | None = None, top: int = 5, corpus: str = STORIES
) -> Shown:
    """Predict each next word from all words before it, or with a model that sees only the last `context` words."""
    if context is not None and context < 1:
        raise ValueError(f"context is {context}; the model needs at least one word")
    small = train("gpt", corpus, context=context)
    ids = [1, *small.ids(text)]  # <start>
    with torch.no_grad():
        logits = small.model(input_ids=torch.tensor([ids])).logits[0]  # (T, V)
    logs = logits.log_softmax(-1)
    best = logits[-1].topk(max(1, min(top, len(small.tokens)))).indices.tolist()
    words = [(small.tokens[i], float(logs[-1, i].exp())) for i in best]
    rows = [
        [small.tokens[i], float(log[i].exp()), float(log[i]), small.tokens[int(log.argmax())]]
        for log, i in zip(logs[:-1], ids[1:], strict=True)
    ]
    return Shown(
        f"after {text!r}: {words[0][0]!r} with probability {words[0][1]:.2f}; "
        f"the log-likelihood of the text is {sum(row[2] for row in rows):.2f}",
        [
            Table("next word", ("word", "score", "probability"), [
                [word, float(logits[-1, i]), p] for i, (word, p) in zip(best, words, strict=True)
            ]),
            Table("each word, given the words before it", ("word", "probability", "log", "most likely"), rows),
        ],
        lambda: bars(words, f"after '{text}'"),
    )  # fmt: skip
