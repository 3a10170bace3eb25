"""Which kind of model for which job: a small GPT and a small BERT continue texts and fill gaps.

Both learn the same sentences. A gap is one word of a sentence; a continuation begins with the first two words.
"""

from __future__ import annotations

from typing import Any

import torch

from anyformer.look.figures import new
from anyformer.specs.field_types import Count
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._trained import STORIES, train


def example(corpus: str = STORIES, *, start: Count = 2, length: Count = 8) -> Shown:
    """Count right words in gaps, and continuations that are sentences of the corpus, from `start` words on."""
    lines = sorted({" ".join(line.split()) for line in corpus.splitlines() if line.strip()})
    if not any(len(line.split()) > 1 for line in lines):
        raise ValueError("give lines of at least two words; the last word of a line is not a gap")
    models = {"GPT": train("gpt", corpus), "BERT": train("bert", corpus)}
    prompts = sorted({tuple(words[:start]) for line in lines if len(words := line.split()) > start})
    if not prompts:
        raise ValueError(f"start is {start}; no line has more words")
    rows, shown_texts = [], []
    for name, small in models.items():
        right = total = 0
        for line in lines:
            words = line.split()
            for gap in range(len(words) - 1):  # the full stop is not a gap
                guess = small.tokens[int(fill(small, words, gap, name).argmax())]
                right, total = right + (guess == words[gap]), total + 1
        texts = [write(small, list(prompt), length, name) for prompt in prompts]
        known = sum(text in lines for text in texts)
        rows.append([name, right / total, known / len(texts)])
        shown_texts += [[name, " ".join(prompt), text] for prompt, text in zip(prompts[:4], texts, strict=False)]

    def draw() -> Any:
        figure, axes = new(2, 1, 7, 3, sharey=True)
        for axis, column, title in zip(axes[0], (1, 2), ("gaps filled right", "continuations that are sentences")):
            axis.bar([row[0] for row in rows], [100 * row[column] for row in rows])
            axis.set_title(f"{title}, %", fontsize=9)
        return figure

    (_, gpt_gaps, gpt_texts), (_, bert_gaps, bert_texts) = rows
    return Shown(
        f"gaps: BERT {bert_gaps:.0%}, GPT {gpt_gaps:.0%}; continuations: BERT {bert_texts:.0%}, GPT {gpt_texts:.0%}",
        [
            Table("two jobs", ("model", "gaps filled right", "continuations that are sentences"), rows),
            Table("some continuations", ("model", "start", "text"), shown_texts),
        ],
        draw,
    )


@torch.no_grad()
def fill(small: Any, words: list[str], gap: int, name: str) -> torch.Tensor:
    """Return scores (V,) of the word at index `gap`; GPT reads only the words before it."""
    if name == "GPT":
        ids = [1, *(small.ids(" ".join(words[:gap])) if gap else [])]
        return small.model(input_ids=torch.tensor([ids])).logits[0, -1]
    ids = [1, *small.ids(" ".join([*words[:gap], "[MASK]", *words[gap + 1 :]])), 2]
    return small.model(input_ids=torch.tensor([ids])).prediction_logits[0, gap + 1]


def write(small: Any, words: list[str], length: int, name: str) -> str:
    """Append the most likely word until the full stop. BERT predicts a [MASK] at the end of the text."""
    words = list(words)
    while len(words) < length and words[-1] != ".":
        words.append(small.tokens[int(fill(small, [*words, "[MASK]"], len(words), name).argmax())])
    return " ".join(words)
