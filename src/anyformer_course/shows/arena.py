"""Arena scores against cost: published ratings of chat models, the chance to win that they mean, and cost per token.

A difference of d points means a chance of 1 / (1 + 10^(-d / 400)) to win a comparison. Cost is 2 N FLOPs per token; N
is the parameters in the model's name. Ratings: LMSYS, leaderboard of 10 May 2023 (models with published sizes).
"""

from __future__ import annotations

from typing import Any

from anyformer.look.figures import new
from anyformer.specs.messages import nearest, quote
from anyformer_course.pictures.points import name_points
from anyformer_course.shown import Shown, Table

# name: (rating, billions of parameters); None: size not published
MODELS: dict[str, tuple[int, float | None]] = {
    "gpt-4": (1274, None), "claude-v1": (1224, None), "gpt-3.5-turbo": (1155, None), "vicuna-13b": (1083, 13),
    "koala-13b": (1022, 13), "rwkv-4-raven-14b": (989, 14), "oasst-pythia-12b": (928, 12), "chatglm-6b": (918, 6),
    "stablelm-tuned-alpha-7b": (906, 7), "alpaca-13b": (904, 13), "fastchat-t5-3b": (902, 3),
    "dolly-v2-12b": (863, 12), "llama-13b": (826, 13),
}  # fmt: skip


def example(first: str = "vicuna-13b", second: str = "llama-13b") -> Shown:
    """Compare two models, and list all."""
    for name in (first, second):
        if name not in MODELS:
            raise ValueError(f"no rating of {quote(name)}; {nearest(name, MODELS)}")
    rows = [
        [name, rating, win(MODELS[first][0] - rating), size, None if size is None else 2e9 * size]
        for name, (rating, size) in MODELS.items()
    ]
    best = []  # models that no cheaper model beats
    for row in sorted((row for row in rows if row[3]), key=lambda row: (row[3], -row[1])):
        if not best or row[1] > best[-1][1]:
            best.append(row)

    def draw() -> Any:
        figure, axes = new(1, 1, 7.5, 4)
        for name, rating, _, _, flops in rows:
            if flops:
                axes[0, 0].plot(flops, rating, "o", color="C1" if name in (first, second) else "C0")
            else:
                axes[0, 0].axhline(rating, color="gray", linestyle=":", lw=0.8)
                axes[0, 0].text(4e9, rating + 4, f"{name}, size unknown", fontsize=8, color="gray")
        axes[0, 0].plot([row[4] for row in best], [row[1] for row in best], color="C2", lw=1)
        axes[0, 0].set(xlabel="FLOPs per token, 2 N", ylabel="rating, published", xlim=(3e9, 4e10))
        name_points(axes[0, 0], [(row[0], row[4], row[1]) for row in rows if row[4]])
        return figure

    d = MODELS[first][0] - MODELS[second][0]
    return Shown(
        f"{first} has {d} points more than {second}: it wins {100 * win(d):.0f} % of the comparisons. Best for their "
        f"cost: {', '.join(row[0] for row in best)}.",
        [Table("ratings, published; chance to win and cost, computed", ("model", "rating", f"{first} wins",
         "billion parameters", "FLOPs per token"), rows)],
        draw,
    )  # fmt: skip


def win(difference: float) -> float:
    return 1 / (1 + 10 ** (-difference / 400))
