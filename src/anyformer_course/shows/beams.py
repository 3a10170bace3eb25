"""Greedy, beam search and sampling side by side, with the probability of each text.

A small GPT (about a second of training) continues your words. `corpus` replaces its sentences with lines of your own.
"""

from __future__ import annotations

import math
from typing import Any

import torch

import anyformer as af
from anyformer.look.figures import bars
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._trained import STORIES, SmallModel, train


def example(
    text: str = "the", *, beams: int = 3, new: int = 7, temperature: float = 1.0, seed: int = 0, corpus: str = STORIES
) -> Shown:
    """Continue the text by at most `new` words, until the end of the sentence."""
    small = train("gpt", corpus)
    ids = torch.tensor([[1, *small.ids(text)]])
    ways: dict[str, dict[str, Any]] = {
        "greedy": {},
        f"beam search, {amount(beams, 'beam')}": {"num_beams": beams, "length_penalty": 0.0},
        "sample": {"do_sample": True, "temperature": temperature, "top_k": 0, "seed": seed, "num_return_sequences": 3},
    }
    rows = [
        [way, words, chance, math.log(chance)]
        for way, options in ways.items()
        for words, chance in write(small, ids, new, **options)
    ]
    steps = [
        [n, i + 1, words, chance]
        for n in range(1, new + 1)
        for i, (words, chance) in enumerate(
            write(small, ids, n, num_beams=beams, num_return_sequences=beams, length_penalty=0.0)
        )
    ]
    (_, greedy, low, _), (_, found, high, _) = rows[:2]
    comparison = "the same text as" if greedy == found else f"{high / low:.1f} times the probability of"
    return Shown(
        f"beam search finds {found!r} ({high:.3f}): {comparison} greedy's {greedy!r} ({low:.3f})",
        [
            Table("continuations", ("way", "text", "probability", "log"), rows),
            Table("the beams after each step", ("step", "beam", "text", "probability"), steps),
        ],
        lambda: bars(
            [
                (f"{way}: {words}" if way != "sample" else f"sample {i - 1}: {words}", chance)
                for i, (way, words, chance, _) in enumerate(rows)
            ],
            "probability of each text",
        ),
    )


def write(small: SmallModel, ids: torch.Tensor, new: int, **options: Any) -> list[tuple[str, float]]:
    """Return each text, without marks, and the model's probability of the new words."""
    texts = af.generate(small.model, ids, max_new_tokens=new, eos_token_id=0, pad_token_id=0, **options)
    return [(small.text(i for i in row if i > 3), probability(small, row, ids.shape[1])) for row in texts]


def probability(small: SmallModel, row: torch.Tensor, prompt: int) -> float:
    end = next((i + 1 for i in range(prompt, len(row)) if row[i] == 0), len(row))
    with torch.no_grad():
        scores = small.model(input_ids=row[None, :end]).logits[0].log_softmax(-1)
    return float(scores[prompt - 1 : end - 1].gather(1, row[prompt:end, None]).sum().exp())
