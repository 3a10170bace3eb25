"""GPT's four input formats for fine-tuning: classification, entailment, similarity, multiple choice.

A pretrained small GPT reads every format as one sequence of tokens. One linear layer reads the state of <extract>.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.look.figures import new, plain
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._trained import STORIES, SmallModel, train


def example(
    text: str = "the dog barked at the cat",
    second: str = "a bird sang in the tree",
    third: str = "the sun was warm",
    *,
    both_orders: bool = True,
    corpus: str = STORIES,
    seed: int = 0,
) -> Shown:
    """Write the texts in each format and compute the scores. `both_orders=False` reads similarity in one order only."""
    small = train("gpt", corpus)
    if not all(each.split() for each in (text, second, third)):
        raise ValueError("the text is empty; write a few words")
    draws = torch.Generator().manual_seed(seed)
    states: dict[str, torch.Tensor] = {}
    head = {n: torch.randn(n, small.model.spec.width, generator=draws) / 4 for n in (1, 2, 3)}

    def read(*texts: str) -> tuple[str, torch.Tensor]:
        line = " ".join(small.words("<start> " + " <delim> ".join(texts) + " <extract>"))
        states[line] = last_state(small, line)
        return line, states[line]

    def similarity(one: str, other: str) -> list[tuple[str, torch.Tensor]]:
        return [read(one, other), read(other, one)] if both_orders else [read(one, other)]

    rows: list[list[Any]] = []
    for task, (line, state), labels in (
        ("classification", read(text), ("spam", "not spam")),
        ("entailment", read(text, second), ("entails", "neutral", "contradicts")),
    ):
        scores = (head[len(labels)] @ state).softmax(-1).tolist()
        rows.append([task, line, ", ".join(f"{label} {p:.2f}" for label, p in zip(labels, scores, strict=True))])
    pairs, swapped = similarity(text, second), similarity(second, text)
    score, reverse = (float(head[1] @ sum(state for _, state in each)) for each in (pairs, swapped))
    states_read = "sum of both states" if both_orders else "one state"
    rows += [["similarity", line, f"{states_read}: score {score:.3f}"] for line, _ in pairs]
    choices = [read(text, answer) for answer in (second, third)]
    chances = torch.cat([head[1] @ state for _, state in choices]).softmax(0).tolist()
    rows += [["multiple choice", line, f"{p:.2f}"] for (line, _), p in zip(choices, chances, strict=True)]

    def draw() -> Any:
        figure, axes = new(1, 1, 11, 0.3 + 0.45 * len(rows))
        colors = {"<start>": "#a1d99b", "<delim>": "#fdae6b", "<extract>": "#9ecae1"}
        for y, (task, line, result) in enumerate(rows):
            axes[0, 0].text(-0.2, -y, task, ha="right", va="center", fontsize=10)
            for x, word in enumerate(line.split()):
                box = {"facecolor": colors.get(word, "white"), "edgecolor": "0.7", "boxstyle": "round,pad=0.2"}
                axes[0, 0].text(x + 0.5, -y, plain(word.strip("<>")), ha="center", va="center", fontsize=9, bbox=box)
            axes[0, 0].text(len(line.split()) + 0.2, -y, plain(result).replace(", ", "\n"), va="center", fontsize=9)
        axes[0, 0].set_xlim(-1.8, max(len(line.split()) for _, line, _ in rows) + 3)
        axes[0, 0].set_ylim(0.6 - len(rows), 0.6)
        axes[0, 0].set_axis_off()
        return figure

    order = "does not change" if abs(score - reverse) < 1e-5 else f"changes by {abs(score - reverse):.3f}"
    return Shown(
        f"four tasks, one model: {len(states)} token sequences; the similarity score {order} if the texts are swapped",
        [Table("formats (the new linear layer is not trained yet)", ("task", "input", "result"), rows)],
        draw,
    )


def last_state(small: SmallModel, line: str) -> torch.Tensor:
    """Return the state (D,) of the last token, after the last norm."""
    with torch.no_grad():
        run = af.trace(small.model, keep="decoder.normed", input_ids=torch.tensor([small.ids(line)]))
    return F.normalize(run["decoder.normed"][0, -1], dim=0) * small.model.spec.width**0.5
