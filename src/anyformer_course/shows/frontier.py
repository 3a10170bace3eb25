"""Published scores of Reka and other large models in 2024, and how often each model is ahead of another."""

from __future__ import annotations

from typing import Any

from anyformer.look.figures import new
from anyformer.specs.messages import quote
from anyformer_course.shown import Shown, Table

MODELS = ("Reka Core", "Reka Flash", "GPT-4", "Claude 3 Opus", "Claude 3 Sonnet", "Gemini Ultra", "Gemini Pro 1.5")
SHORT = {"Reka Core": "Core", "Reka Flash": "Flash", "Gemini Pro 1.5": "Gemini 1.5"}  # in the widest table
# as printed [Ormazabal et al. 2024, table 5]; None: not tested or not published
PUBLISHED: dict[str, tuple[float | None, ...]] = {
    "MMLU": (83.2, 75.9, 86.4, 86.8, 79.0, 83.7, 81.9),
    "GSM8K": (92.2, 85.8, 92.0, 95.0, 92.3, 94.4, 91.7),
    "HumanEval": (76.8, 72.0, 76.5, 84.9, 73.0, 74.4, 71.9),
    "GPQA": (38.2, 34.0, 38.1, 50.2, 39.1, 35.7, 41.5),
    "MMMU": (56.3, 53.3, 56.8, 59.1, 53.1, 59.4, 58.5),
    "VQAv2": (78.1, 78.4, 77.2, None, None, 77.8, 73.2),
    "Perception": (59.3, 56.4, None, None, None, 54.7, 51.1),
}


def example(model: str = "Reka Core") -> Shown:
    """Compare `model` with the others, benchmark by benchmark, where both have a score."""
    if model not in MODELS:
        raise ValueError(f"no model {quote(model)}; use one of {', '.join(MODELS)}")
    column = MODELS.index(model)
    wins = []
    for i, rival in enumerate(MODELS):
        both: list[tuple[Any, Any]] = [
            (row[column], row[i]) for row in PUBLISHED.values() if row[column] is not None and row[i] is not None
        ]
        if rival != model:
            ahead = sum(a > b for a, b in both)
            gap = sum(a - b for a, b in both) / len(both)
            wins.append([rival, len(both), ahead, ahead / len(both), gap])
    ranks: list[list[Any]] = []
    for name, row in PUBLISHED.items():
        order = sorted((each for each in row if each is not None), reverse=True)
        own = row[column]
        ranks.append([name, own, None if own is None else order.index(own) + 1, len(order), order[0],
                      MODELS[row.index(order[0])]])  # fmt: skip
    placed = [row for row in ranks if row[2] is not None]
    first = [row[0] for row in placed if row[2] == 1]

    def draw() -> Any:
        figure, axes = new(1, 1, 10, 4)
        for i, name in enumerate(MODELS):
            axes[0, 0].bar([x + 0.11 * i for x in range(len(PUBLISHED))],
                           [row[i] or 0 for row in PUBLISHED.values()], 0.11, label=name)  # fmt: skip
        axes[0, 0].set_xticks([x + 0.33 for x in range(len(PUBLISHED))], PUBLISHED)
        axes[0, 0].set_ylabel("published score, %")
        axes[0, 0].legend(fontsize=7, ncols=4)
        axes[0, 0].set_ylim(0, 112)
        return figure

    return Shown(
        f"{model} is first in {len(first)} of {len(placed)} benchmarks"
        + (f" ({', '.join(first)})" if first else "")
        + f"; its mean rank is {sum(row[2] for row in placed) / len(placed):.1f}.",
        [
            Table("as published; Core and Flash are Reka's", ("benchmark", *(SHORT.get(name, name) for name in MODELS)),
                  [[name, *row] for name, row in PUBLISHED.items()]),
            Table(f"{model}, published scores", ("benchmark", "score", "rank", "of", "best", "best model"), ranks),
            Table(f"{model} against each rival", ("rival", "both tested", "ahead in", "share", "mean difference"),
                  wins),
        ],
        draw,
    )  # fmt: skip
