"""Scaling laws: loss by parameters, tokens and compute, and the best size for a budget.

The laws are the published ones: Kaplan et al. [2020] and Hoffmann et al. [2022, Chinchilla]. Each was fitted to its
own data, so compare losses only within a law.
"""

from __future__ import annotations

from typing import Any

from anyformer.look import figures
from anyformer.planning.compute import LAWS, PETAFLOP_DAY, hoffmann_loss, kaplan_loss
from anyformer_course.shown import Shown, Table

LOSSES = {"Kaplan": kaplan_loss, "Hoffmann": hoffmann_loss}
SIZES = (1e7, 1e8, 1e9, 1e10, 1e11)


def example(compute: str = "1e19 1e21 1e23", *, law: str = "Kaplan", loss: float = 3.0) -> Shown:
    """Divide each budget of `compute` FLOPs between parameters and tokens, and count the tokens to reach `loss`."""
    try:
        budgets = [float(each) for each in str(compute).split()]
    except ValueError:
        budgets = []
    if not budgets or not all(1e12 <= each <= 1e30 for each in budgets):
        raise ValueError(f"compute is {compute!r}; give FLOPs from 1e12 to 1e30, such as '1e21 1e23'")
    if law not in LOSSES:
        raise ValueError(f"no law is called {law!r}; choose Kaplan or Hoffmann")
    best = [(budget, optimum(budget)) for budget in budgets for optimum in LAWS]
    table = [
        [f"{budget:.3g}", each.law, each.parameters, each.tokens, each.tokens / each.parameters,
         kaplan_loss(each.parameters, each.tokens), hoffmann_loss(each.parameters, each.tokens)]
        for budget, each in best
    ]  # fmt: skip
    reach = []
    for size in SIZES:
        tokens = needed(LOSSES[law], size, loss)
        reach.append([size, LOSSES[law](size, 1e30), tokens, None if tokens is None else 6 * size * tokens])

    def draw() -> Any:
        figure, axes = figures.new(2, 1, 9.5, 3.8)
        for size in SIZES:
            tokens = [10 ** (8 + i / 5) for i in range(26)]
            axes[0, 0].plot(tokens, [LOSSES[law](size, D) for D in tokens], label=f"{size:.0e} parameters")
            axes[0, 1].plot([6 * size * D for D in tokens], [LOSSES[law](size, D) for D in tokens])
        axes[0, 0].set(xscale="log", xlabel="tokens", ylabel="loss", title=f"loss by tokens, {law}")
        axes[0, 1].set(xscale="log", xlabel="compute 6 N D, FLOPs", title="loss by compute")
        axes[0, 0].legend(frameon=False, fontsize=8)
        return figure

    enough = [row for row in reach if row[2]]
    small, large = enough[0], enough[-1]
    Ns = [each.parameters for budget, each in best if each.law == "Kaplan"]
    return Shown(
        f"By {law}, a loss of {loss:g} takes {small[2]:.1e} tokens with {small[0]:.0e} parameters and {large[2]:.1e} "
        f"with {large[0]:.0e}. For {budgets[0]:.3g} FLOPs Kaplan's best size is {Ns[0]:.1e} parameters.",
        [
            Table("best size and tokens for a budget", ("FLOPs", "rule", "parameters", "tokens", "tokens per parameter",
                  "loss by Kaplan", "loss by Hoffmann"), table),
            Table(f"tokens to reach a loss of {loss:g} by {law}",
                  ("parameters", "loss with infinite data", "tokens", "compute 6 N D"), reach),
            Table("budgets", ("FLOPs", "petaflop-days"), [[f"{b:.3g}", b / PETAFLOP_DAY] for b in budgets]),
        ],
        draw,
    )  # fmt: skip


def needed(law: Any, size: float, loss: float) -> float | None:
    """Return the tokens after which a model of this size has this loss, or None if it never reaches it."""
    low, high = 1e6, 1e16
    if law(size, high) > loss:
        return None
    for _ in range(80):  # bisection of the logarithm
        middle = (low * high) ** 0.5
        low, high = (middle, high) if law(size, middle) > loss else (low, middle)
    return high
