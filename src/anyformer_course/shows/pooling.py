"""What a classifier reads: the vector of [CLS], of the last token, or the mean of all tokens.

A small BERT with random weights reads your text. Then the last state of each token is set to zero, one token at a time:
only tokens that the classifier reads change its scores.
"""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer.look.figures import new, plain
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._pieces import encode, tokenizer
from anyformer_course.shows._trained import describe


def example(text: str = "win a free prize now", *, take: str = "first", labels: int = 2, seed: int = 0) -> Shown:
    """Classify the text from the "first" token ([CLS]), the "last" token or the "mean" of all tokens."""
    from anyformer.parts.head.classify import ClassifyHead
    from anyformer.parts.head.pool import Pool
    from anyformer.parts.head.pooling import FirstToken, LastToken, MeanTokens

    kinds = {"first": FirstToken(), "last": LastToken(), "mean": MeanTokens()}
    if take not in kinds:
        raise ValueError(f"take is {take!r}; it must be 'first', 'last' or 'mean'")
    pieces = tokenizer(text)
    inputs = encode(pieces, text)
    tokens = [pieces.token(i) for i in inputs["input_ids"][0].tolist()]
    spec = describe("bert-base", len(pieces))
    pool = Pool(take=kinds[take], dense=True, activation="tanh")
    model = af.build(spec.replace(head=ClassifyHead(num_labels=labels, pool=pool), ties=()), seed=seed).eval()
    with torch.no_grad():
        before = model(**inputs).logits[0].softmax(-1)
        rows = []
        for i, token in enumerate(tokens):
            at_end, at_start = (
                float(
                    (af.trace(model, change={at: zero(i)}, **inputs).output.logits[0].softmax(-1) - before).abs().max()
                )
                for at in ("encoder.layers.1", "embedding")
            )
            rows.append([token, at_end, at_start])
    read = [row[0] for row in rows if row[1] > 1e-6]

    def draw() -> Any:
        figure, axes = new(2, 1, 8, 0.8 + 0.25 * len(tokens), sharey=True)
        for axis, column, title in zip(axes[0], (1, 2), ("last layer", "first layer"), strict=True):
            axis.barh([f"{i} {plain(token)}" for i, token in enumerate(tokens)][::-1], [r[column] for r in rows][::-1])
            axis.locator_params(axis="x", nbins=5)
            axis.set_title(f"change without the token in the {title}", fontsize=9)
            axis.tick_params(labelsize=7)
        return figure

    chances = ", ".join(f"{p:.2f}" for p in before.tolist())
    return Shown(
        f"class probabilities {chances}; after the last layer the classifier reads {', '.join(read)}",
        [Table("change of the probabilities without a token", ("token", "after the last layer", "at the input"), rows)],
        draw,
    )


def zero(index: int) -> Any:
    def change(x: torch.Tensor, address: str) -> torch.Tensor:
        kept = torch.arange(x.shape[1]) != index
        return x * kept[:, None]

    return change
