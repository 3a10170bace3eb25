"""ELECTRA and BERT by compute: published GLUE scores (development set) and training FLOPs of Clark et al. [2020].

At equal compute ELECTRA has the higher score, because its loss covers all tokens; tables 1 and 2 of the paper.
"""

from __future__ import annotations

from typing import Any

from anyformer.look.figures import new
from anyformer.specs.messages import quote
from anyformer_course.pictures.points import name_points
from anyformer_course.shown import Shown, Table

# (model, training FLOPs, GLUE) [Clark et al. 2020, tables 1 and 2]
PUBLISHED = (
    ("ELMo", 3.3e18, 71.2), ("GPT", 4.0e19, 78.8),
    ("BERT-Small", 1.4e18, 75.1), ("BERT-Base", 6.4e19, 82.2), ("BERT-Large", 1.9e20, 84.0),
    ("BERT, their training", 7.1e20, 87.2),
    ("RoBERTa-100K", 6.4e20, 87.9), ("RoBERTa-500K", 3.2e21, 88.9), ("XLNet", 3.9e21, 89.1),
    ("ELECTRA-Small", 1.4e18, 79.9), ("ELECTRA-Base", 6.4e19, 85.1), ("ELECTRA-400K", 7.1e20, 89.0),
    ("ELECTRA-1.75M", 3.1e21, 89.5),
)  # fmt: skip
GROUPS = {"ELECTRA": "C3", "BERT": "C0", "RoBERTa": "C1", "XLNet": "C2", "other": "C7"}


def example(compare: str = "BERT") -> Shown:
    """Compare ELECTRA with the models whose name begins with `compare`, each with the ELECTRA of the nearest "
    "compute."""
    ours = [row for row in PUBLISHED if row[0].startswith("ELECTRA")]
    others = [row for row in PUBLISHED if row[0].startswith(compare) and row not in ours]
    if not others:
        names = ", ".join(sorted({group_of(name) for name, _, _ in PUBLISHED} - {"ELECTRA", "other"}))
        raise ValueError(f"no model begins with {quote(compare)}; use {names}, GPT or ELMo")
    pairs = []
    for name, flops, score in others:
        best = min(ours, key=lambda row: max(row[1] / flops, flops / row[1]))
        pairs.append([name, flops, score, best[0], best[1], best[2], best[2] - score, best[1] / flops])
    ahead = [pair for pair in pairs if pair[6] > 0]

    def draw() -> Any:
        figure, axes = new(1, 1, 7.5, 4.2)
        for group, color in GROUPS.items():
            points = sorted((flops, score, name) for name, flops, score in PUBLISHED if group_of(name) == group)
            style = "o-" if group in ("ELECTRA", "BERT") else "s"
            axes[0, 0].plot([x for x, _, _ in points], [y for _, y, _ in points], style, color=color, label=group)
        axes[0, 0].set(xscale="log", xlabel="training FLOPs", ylabel="GLUE, development set", title="published scores")
        axes[0, 0].margins(x=0.15, y=0.12)
        axes[0, 0].legend(frameon=False, fontsize=8, loc="lower right")
        name_points(axes[0, 0], PUBLISHED)
        return figure

    return Shown(
        f"In {len(ahead)} of {len(pairs)} comparisons ELECTRA has the higher score: "
        + ", ".join(f"{pair[3]} {pair[5]} and {pair[0]} {pair[2]} ({ratio(pair[7])})" for pair in pairs)
        + ".",
        [Table("nearest in compute, published", ("model", "FLOPs", "GLUE", "ELECTRA", "its FLOPs", "its GLUE",
               "points more", "ratio"), pairs),
         Table("all published scores", ("model", "training FLOPs", "GLUE"), sorted(PUBLISHED, key=lambda row: row[1]))],
        draw,
    )  # fmt: skip


def ratio(value: float) -> str:
    return "equal FLOPs" if value == 1 else f"{value:.2g} times its FLOPs"


def group_of(name: str) -> str:
    return next((group for group in GROUPS if name.startswith(group)), "other")
