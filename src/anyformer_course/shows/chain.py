"""The probability of a text, word by word: p(z) = p(z1) p(z2 | z1) p(z3 | z1, z2) ...

A small decoder learns the text. One pass with a causal mask gives all factors at once (training); one pass per word
gives the same numbers (generation), but needs as many passes as words. With a `source` x, a small encoder-decoder
learns four translations, and the factors are p(z3 | z1, z2, x).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.look import figures
from anyformer.specs.messages import amount, nearest, quote
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._small import decoder, number
from anyformer_course.shows._trained import spell
from anyformer_course.shows.cross import description, shift
from anyformer_course.table import tiny
from anyformer_course.words import split

TRANSLATIONS = {
    "the detective investigated": "le détective a enquêté", "the detective slept": "le détective a dormi",
    "the dog investigated": "le chien a enquêté", "the dog slept": "le chien a dormi",
}  # fmt: skip
KNOWN = list(dict.fromkeys(word for pair in TRANSLATIONS.items() for side in pair for word in side.split()))


def example(
    text: str = "the detective investigated the murder", *, source: str = "", steps: int = 12, seed: int = 0
) -> Shown:
    """Train for `steps` steps, then compute the probability of the text in one pass and word by word."""
    if not 0 <= steps <= 200:
        raise ValueError(f"steps is {steps}; it must be from 0 to 200")
    if source:
        words, given_words = (split(" ".join(spell(each, KNOWN))) for each in (text, source))
        vocabulary, ids, logits = translator(words, given_words, steps, seed)
    else:
        words = split(text)
        vocabulary, ids, logits = language_model(words, steps, seed)
    with torch.no_grad():
        at_once = logits(ids[:, :-1]).softmax(-1)  # (T, V)
        one_by_one = torch.stack([logits(ids[:, : i + 1])[-1].softmax(-1) for i in range(len(words))])
    factors = at_once.gather(1, ids[0, 1:, None])[:, 0]
    error = float((at_once - one_by_one).abs().max())
    total = float(factors.log().sum())
    products = factors.cumprod(0)

    def draw() -> Any:
        figure, axes = figures.new(2, 1, 9, 3.4)
        axes[0, 0].bar(range(len(words)), factors.tolist())
        axes[0, 0].set_xticks(range(len(words)), words, rotation=45, fontsize=8)
        axes[0, 0].set_title(f"p(word | words before it{', source' if source else ''})", fontsize=10)
        axes[0, 1].imshow(at_once.numpy(), vmin=0, vmax=1, cmap="Blues", aspect="auto")
        axes[0, 1].set_xticks(range(len(vocabulary)), vocabulary, rotation=45, fontsize=7)
        axes[0, 1].set_yticks(range(len(words)), [f"after {w}" for w in ["<start>", *words[:-1]]], fontsize=7)
        axes[0, 1].set_title("distribution over the vocabulary", fontsize=10)
        return figure

    T, prompt = len(words), 0 if source else len(words) // 2
    mixed = [[f"mixed: a prompt of {amount(prompt, 'word')} at once", T - prompt, sum(range(prompt + 1, T + 1))]]
    given = ", source" if source else ""
    return Shown(
        f"p({'text | ' + source if source else 'text'}) = {math.exp(total):.3g}, log p = {total:.2f}; one pass and "
        f"{len(words)} {'pass' if len(words) == 1 else 'passes'} differ by at most "
        f"{tiny(error)}.",
        [
            Table(
                "factors",
                ("word", f"p(word | before{given})", "product so far", "most likely word here", "its probability"),
                [
                    [word, float(factors[i]), float(products[i]), vocabulary[int(row.argmax())], float(row.max())]
                    for i, (word, row) in enumerate(zip(words, at_once, strict=True))
                ],
            ),
            Table("passes", ("mode", "passes", "words read"), [
                ["all at once (training)", 1, T], ["one by one (generation)", T, T * (T + 1) // 2],
                *(mixed if prompt else []),
            ]),
        ],
        draw,
    )  # fmt: skip


Logits = Callable[[torch.Tensor], torch.Tensor]  # words before (1, T) -> scores of the next words (T, V)


def language_model(words: list[str], steps: int, seed: int) -> tuple[list[str], torch.Tensor, Logits]:
    """Train a decoder on the text; return the vocabulary, the text with <start>, and the model."""
    vocabulary, ids = number(["<start>", *words])
    model: Any = af.build(decoder(len(vocabulary), width=32), seed=seed)
    fit(model, steps, lambda: F.cross_entropy(model(input_ids=ids).logits[0, :-1], ids[0, 1:]))
    return vocabulary, ids, lambda before: model(input_ids=before).logits[0]


def translator(words: list[str], source: list[str], steps: int, seed: int) -> tuple[list[str], torch.Tensor, Logits]:
    """Train an encoder-decoder on TRANSLATIONS; return the vocabulary, the text with <start>, and the model."""
    vocabulary, start = KNOWN, len(KNOWN)
    if unknown := next((word for word in [*words, *source] if word not in vocabulary), None):
        raise ValueError(f"the small translator does not know {quote(unknown)}; {nearest(unknown, vocabulary)}")

    def encode(lines: list[list[str]]) -> torch.Tensor:
        return torch.tensor([[vocabulary.index(word) for word in line] for line in lines])

    sources, targets = (encode([each.split() for each in side]) for side in (TRANSLATIONS, TRANSLATIONS.values()))
    model: Any = af.build(description(start + 1, start, 32), seed=seed)

    def loss() -> torch.Tensor:
        logits = model(input_ids=sources, decoder_input_ids=shift(targets, start)).logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    fit(model, steps, loss)
    x, ids = encode([source]), torch.cat((torch.tensor([[start]]), encode([words])), 1)
    return [*vocabulary, "<start>"], ids, lambda before: model(input_ids=x, decoder_input_ids=before).logits[0]


def fit(model: Any, steps: int, loss: Callable[[], torch.Tensor]) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    model.eval()
