"""Elo ratings of an arena: from votes between two answers to one number per model.

A rating difference of 400 means odds of 10 to 1. Voters compare two anonymous answers; here they vote by known
ratings, and we compute the ratings back from the votes, as an arena does [Chiang et al. 2024].
"""

from __future__ import annotations

from typing import Any

import torch

from anyformer.look.figures import new
from anyformer.specs.messages import quote
from anyformer_course.shown import Shown, Table
from anyformer_course.words import read_number


def example(ratings: str = "A:1250 B:1200 C:1150 D:1000", *, votes: int = 3000, seed: int = 0) -> Shown:
    """Draw `votes` votes between models with these true `ratings`, and estimate the ratings from the votes."""
    try:
        true = {name: read_number(value) for name, value in (each.split(":") for each in ratings.split())}
    except ValueError:
        raise ValueError(f"ratings is {quote(ratings)}; write names and numbers such as 'A:1250 B:1200'") from None
    if not 2 <= len(true) <= 10 or not 10 <= votes <= 100_000:
        raise ValueError("give 2 to 10 models and 10 to 100,000 votes")
    names, real = list(true), torch.tensor(list(true.values()))
    draws = torch.Generator().manual_seed(seed)
    first = torch.randint(0, len(names), (votes,), generator=draws)
    second = (first + torch.randint(1, len(names), (votes,), generator=draws)) % len(names)
    won = torch.rand(votes, generator=draws) < chance(real[first] - real[second])
    wins = torch.zeros(len(names), len(names))
    wins.index_put_((torch.where(won, first, second), torch.where(won, second, first)), torch.ones(votes), True)
    found = fit(wins) + real.mean()
    rounded = [round(each) for each in found.tolist()]
    rows = [[name, true[name], rounded[i], float(found[i] - real[i]), int(wins[i].sum()), int(wins[:, i].sum())]
            for i, name in enumerate(names)]  # fmt: skip
    best, next_best = sorted(range(len(names)), key=lambda i: -float(found[i]))[:2]
    lead = rounded[best] - rounded[next_best]
    p = float(chance(torch.tensor(float(lead))))

    def draw() -> Any:
        figure, axes = new(2, 1, 10, 3.6)
        axes[0, 0].bar(names, found.tolist(), label="from the votes")
        axes[0, 0].plot(names, real.tolist(), "k_", markersize=24, label="true")
        axes[0, 0].set_ylim(float(min(real.min(), found.min())) - 100)
        axes[0, 0].legend(fontsize=8)
        difference = torch.arange(-600, 601, 10.0)
        axes[0, 1].plot(difference.tolist(), chance(difference).tolist())
        axes[0, 1].set(xlabel="difference of the ratings", ylabel="chance to win")
        axes[0, 1].grid(alpha=0.3)
        return figure

    return Shown(
        f"{votes:,} votes rate {names[best]} at {rounded[best]} and {names[next_best]} at {rounded[next_best]}; "
        f"a difference of {lead} means that {names[best]} wins {100 * p:.0f} % of their duels.",
        [
            Table("ratings", ("model", "true", "from the votes", "error", "wins", "losses"), rows),
            Table("chance to win by difference", ("difference", "chance"),
                  [[d, float(chance(torch.tensor(float(d))))] for d in (0, 25, 50, 100, 200, 400)]),
        ],
        draw,
    )  # fmt: skip


def chance(difference: torch.Tensor) -> torch.Tensor:
    return 1 / (1 + 10 ** (-difference / 400))


def fit(wins: torch.Tensor, steps: int = 300) -> torch.Tensor:
    """Return the most likely ratings with mean 0 (Bradley-Terry), by the method of Zermelo."""
    strength, games = torch.ones(len(wins)), wins + wins.T
    for _ in range(steps):
        strength = (wins.sum(1) + 1e-3) / (games / (strength[:, None] + strength)).sum(1).clamp(min=1e-9)
        strength = strength / strength.log().mean().exp()
    return 400 * strength.log10()
