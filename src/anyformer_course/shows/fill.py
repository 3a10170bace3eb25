"""Fill a gap: a small BERT reads both sides of [MASK], a small GPT only the words before it."""

from __future__ import annotations

from typing import Any

import torch

from anyformer.look.figures import new, plain
from anyformer.specs.field_types import Count
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._trained import STORIES, SmallModel, train


def example(
    text: str = "the [MASK] chased the ball .", *, right: bool = True, top: Count = 5, corpus: str = STORIES
) -> Shown:
    """Predict the word at [MASK]. `right=False` also hides all words after it from BERT."""
    bert, gpt = train("bert", corpus), train("gpt", corpus)
    words = bert.words(text)
    if words.count("[MASK]") != 1:
        raise ValueError("write exactly one [MASK], with spaces around it")
    gap = words.index("[MASK]")
    visible = words if right else words[: gap + 1] + ["[MASK]"] * (len(words) - gap - 1)
    with torch.no_grad():
        ids = torch.tensor([[1, *bert.ids(" ".join(visible)), 2]])  # [CLS] ... [SEP]
        both = bert.model(input_ids=ids).prediction_logits[0, gap + 1]
        before = gpt.model(input_ids=torch.tensor([[1, *(gpt.ids(" ".join(words[:gap])) if gap else [])]])).logits[
            0, -1
        ]
    lists = {"BERT": best(bert, both, top), "GPT": best(gpt, before, top)}
    rows = [[i + 1, *lists["BERT"][i], *lists["GPT"][i]] for i in range(top)]

    def draw() -> Any:
        figure, axes = new(2, 1, 8, 3)
        for axis, (name, found) in zip(axes[0], lists.items(), strict=True):
            axis.barh([plain(word) for word, _ in found][::-1], [p for _, p in found][::-1])
            axis.set_title(f"{name}: " + (text if name == "BERT" else " ".join(words[: gap + 1])), fontsize=9)
            axis.set_xlim(0, 1)
        return figure

    (word, p), (other, q) = lists["BERT"][0], lists["GPT"][0]
    return Shown(
        f"BERT fills {word!r} ({p:.2f}); GPT, from the words before the gap, {other!r} ({q:.2f})",
        [Table("most likely words", ("rank", "BERT", "probability", "GPT", "probability of GPT"), rows)],
        draw,
    )


def best(small: SmallModel, scores: torch.Tensor, top: int) -> list[tuple[str, float]]:
    found = scores.softmax(-1).topk(top)
    return [(small.tokens[i], p) for p, i in zip(found.values.tolist(), found.indices.tolist(), strict=True)]
