"""A state space: a linear recurrence, which is also a convolution; with selection it depends on the input.

h[t] = a h[t-1] + b x[t], y[t] = sum of c h[t] over the states, with a = exp(dt A) and b = (a - 1) / A. A convolution
with the kernel K[l] = sum of c a^l b gives the same numbers. Mamba computes dt from each token: dt = 0 keeps the state.
"""

from __future__ import annotations

from typing import Any

import torch

from anyformer.kernels.scan import scan
from anyformer.look.figures import new
from anyformer.specs.messages import quote
from anyformer_course.shown import Shown, Table
from anyformer_course.table import tiny
from anyformer_course.words import read_number


def example(numbers: str = "1 0 0 2 0 0 0 3", *, selective: bool = False, dt: float = 0.5, states: int = 3) -> Shown:
    """Read a row of numbers. With `selective`, zeros get dt = 0: the state does not decay while nothing arrives."""
    try:
        x = torch.tensor([read_number(each) for each in numbers.split()])
    except ValueError:
        raise ValueError(f"numbers is {quote(numbers)}; give numbers with spaces between them") from None
    if not 2 <= len(x) <= 24 or not 1 <= states <= 8 or dt <= 0:
        raise ValueError("give 2 to 24 numbers, 1 to 8 states, and a dt above 0")
    A = -torch.arange(1, states + 1) / 2  # every state decays at its own rate
    c = torch.ones(states)
    steps = torch.where(x != 0, dt, 0.0) if selective else torch.full_like(x, dt)  # (T,)
    decay = torch.exp(steps[:, None] * A)  # (T, N)
    h, history = torch.zeros(states), []
    for t in range(len(x)):
        h = decay[t] * h + (decay[t] - 1) / A * x[t]
        history.append(h)
    state = torch.stack(history)  # (T, N)
    y = state @ c
    a = torch.exp(dt * A)
    kernel = torch.stack([(c * a**l * (a - 1) / A).sum() for l in range(len(x))])
    convolved = torch.stack([(kernel[: t + 1].flip(0) * x[: t + 1]).sum() for t in range(len(x))])
    error = float((convolved - y).abs().max())
    # the library's selective scan uses b = dt instead of (a - 1) / A; the factor makes both equal
    factor = ((decay - 1) / A / steps[:, None].clamp(min=1e-9))[None]
    ours, _ = scan(x[None, :, None], steps[None, :, None], A[:, None].contiguous(), factor, c.expand(1, len(x), -1))
    check = float((ours[0, :, 0] - y).abs().max())

    def draw() -> Any:
        figure, axes = new(3, 1, 11, 3)
        axes[0, 0].stem(x.tolist(), basefmt=" ")
        axes[0, 0].set_title("input x", fontsize=10)
        for n in range(states):
            axes[0, 1].plot(state[:, n].tolist(), "o-", markersize=3, label=f"state {n}, A = {float(A[n]):g}")
        axes[0, 1].set_title("states h, step by step", fontsize=10)
        axes[0, 1].legend(frameon=False, fontsize=8)
        axes[0, 2].plot(y.tolist(), "o-", label="recurrence")
        axes[0, 2].plot(convolved.tolist(), "x--", label="convolution with K")
        axes[0, 2].set_title("output y", fontsize=10)
        axes[0, 2].legend(frameon=False, fontsize=8)
        return figure

    return Shown(
        f"The recurrence and the convolution differ by at most {error:.2g}; the scan of the library differs from the "
        f"recurrence by {tiny(check)}. After the last number the states are "
        + ", ".join(f"{each:.3f}" for each in state[-1].tolist()) + ".",
        [
            Table("step by step", ("t", "x", "dt", *(f"h{n}" for n in range(states)), "y", "convolution", "K[t]"), [
                [t, float(x[t]), float(steps[t]), *state[t].tolist(), float(y[t]), float(convolved[t]),
                 float(kernel[t])] for t in range(len(x))
            ]),
        ],
        draw,
    )  # fmt: skip
