"""Scaling laws: loss by parameters, tokens and compute, and the best size for a budget.

The laws are the published ones: Kaplan et al. [2020] and Hoffmann et al. [2022, Chinchilla]. Each was fitted to its
own data, so compare losses only within a law. The picture on the right has one curve per size; the lowest curve at a
budget is the best size for it. Kaplan's curves assume the best batch size for every loss.
"""

from __future__ import annotations

import math
from typing import Any

from anyformer.look import figures
from anyformer.planning.compute import LAWS, PETAFLOP_DAY, hoffmann_loss, kaplan_loss, kaplan_loss_at
from anyformer.specs.messages import quote
from anyformer_course.shown import Shown, Table

LOSSES = {"Kaplan": kaplan_loss, "Hoffmann": hoffmann_loss}
SIZES = (1e7, 1e8, 1e9, 1e10, 1e11, 1e12)
BY_COMPUTE = {"Kaplan": kaplan_loss_at, "Hoffmann": lambda N, C: hoffmann_loss(N, C / (6 * N))}


def example(compute: str = "1e19 1e21 1e23", *, law: str = "Kaplan", loss: float = 3.0) -> Shown:
    """Divide each budget of `compute` FLOPs between parameters and tokens, and count the tokens to reach `loss`."""
    try:
        budgets = [float(each) for each in str(compute).split()]
    except ValueError:
        budgets = []
    if not budgets or not all(1e12 <= each <= 1e30 for each in budgets):
        raise ValueError(f"compute is {quote(compute)}; give FLOPs from 1e12 to 1e30, such as '1e21 1e23'")
    if law not in LOSSES:
        raise ValueError(f"no law is called {law!r}; choose Kaplan or Hoffmann")
    table = [
        [f"{budget:.3g}", each.law, each.parameters, each.tokens, each.tokens / each.parameters,
         hoffmann_loss(each.parameters, each.tokens)]
        for budget in budgets for each in (rule(budget) for rule in LAWS)
    ]  # fmt: skip
    lowest = [lowest_loss(law, budget) for budget in budgets]
    grid = [
        [f"{budget:.3g}", found[1], *(BY_COMPUTE[law](size, budget) for size in SIZES)]
        for budget, found in zip(budgets, lowest, strict=True)
    ]
    reach = []
    for size in SIZES:
        tokens = needed(LOSSES[law], size, loss)
        reach.append([size, LOSSES[law](size, 1e30), tokens, None if tokens is None else 6 * size * tokens])

    def draw() -> Any:
        figure, axes = figures.new(2, 1, 9.5, 3.8)
        tokens = [10 ** (8 + i / 5) for i in range(31)]
        compute = [10 ** (17 + i / 4) for i in range(33)]
        for i, size in enumerate(SIZES):
            axes[0, 0].plot(
                tokens, [LOSSES[law](size, D) for D in tokens], color=f"C{i}", label=f"{size:.0e} parameters"
            )
            axes[0, 1].plot(compute, [BY_COMPUTE[law](size, C) for C in compute], color=f"C{i}")
        for budget, (loss_there, size) in zip(budgets, lowest, strict=True):
            axes[0, 1].plot(budget, loss_there, "k*", markersize=9)
            axes[0, 1].annotate(f"{size:.0e}", (budget, loss_there), (0, -14), textcoords="offset points", fontsize=8,
                                ha="center")  # fmt: skip
        axes[0, 0].set(xscale="log", xlabel="tokens", ylabel="loss", title=f"loss by tokens, {law}")
        low = min(each for each, _ in lowest)
        axes[0, 1].set(xscale="log", xlabel="compute, FLOPs", title="loss by compute; * best size for a budget")
        axes[0, 1].set_ylim(low - 0.4, 6)
        axes[0, 0].legend(frameon=False, fontsize=8)
        return figure

    enough = [row for row in reach if row[2]]
    if not enough:
        raise ValueError(f"loss is {loss:g}; a model of {short(SIZES[-1])} parameters never reaches it")
    small, large = enough[0], enough[-1]
    says = (
        f"According to {law}, a loss of {loss:g} takes {short(small[2])} tokens with {short(small[0])} parameters and "
        f"{short(large[2])} with {short(large[0])}. For {budgets[-1]:.3g} FLOPs the lowest loss is "
        f"{lowest[-1][0]:.2f}, "
        f"with {short(lowest[-1][1])} parameters"
    )
    if len(budgets) > 1:
        power = math.log(lowest[-1][1] / lowest[0][1]) / math.log(budgets[-1] / budgets[0])
        says += f"; the best size grows with the compute to the power {power:.2f}"
    return Shown(
        f"{says}.",
        [
            Table(f"loss by compute and size, {law}", ("FLOPs", "best size", *(short(size) for size in SIZES)), grid),
            Table(f"tokens to reach a loss of {loss:g} by {law}",
                  ("parameters", "loss with infinite data", "tokens", "compute 6 N D"), reach),
            Table("best size and tokens for a budget, published rules", ("FLOPs", "rule", "parameters", "tokens",
                  "per parameter", "Hoffmann loss"), table),
            Table("budgets", ("FLOPs", "petaflop-days"), [[f"{b:.3g}", b / PETAFLOP_DAY] for b in budgets]),
        ],
        draw,
    )  # fmt: skip


def short(count: float) -> str:
    """Write a large number in words: 1.1 billion."""
    for unit, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if count >= 0.999 * unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.3g}"


def lowest_loss(law: str, compute: float) -> tuple[float, float]:
    """Return the lowest loss of all sizes after C FLOPs, and the size."""
    sizes = [10 ** (5 + i / 50) for i in range(500)]
    return min((BY_COMPUTE[law](size, compute), size) for size in sizes)


def needed(law: Any, size: float, loss: float) -> float | None:
    """Return the tokens after which a model of this size has this loss, or None if it never reaches it."""
    low, high = 1e6, 1e16
    if law(size, high) > loss:
        return None
    for _ in range(80):  # bisection of the logarithm
        middle = (low * high) ** 0.5
        low, high = (middle, high) if law(size, middle) > loss else (low, middle)
    return high
