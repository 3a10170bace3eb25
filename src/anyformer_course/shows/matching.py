"""Softmax attention over examples is a soft nearest neighbour: the answer is a mean of the values of similar examples.

Scores are -(x - x_i)^2 / (2 scale^2). A small scale attends to the nearest example only, a large scale to all of them.
How sharp the weights should be depends on how fast the function changes [Collins et al. 2024]: the second table has the
error of the answers for sin(speed x) with noise.
"""

from __future__ import annotations

from typing import Any

import torch

from anyformer.look.figures import new
from anyformer.specs.messages import quote
from anyformer_course.shown import Shown, Table
from anyformer_course.words import read_number

SCALES = (0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0)
SPEEDS = (0.3, 1.0, 3.0, 10.0)  # the largest slope of sin(speed x)
NOISE = 0.3  # standard deviation


def example(examples: str = "0:0 1:1 2:4 3:9 4:16", *, ask: float = 2.4, scale: float = 0.5) -> Shown:
    """Predict y at x = `ask` from `examples` x:y."""
    try:
        pairs = torch.tensor([[read_number(each) for each in pair.split(":")] for pair in examples.split()])
    except ValueError:
        pairs = torch.zeros(0)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or scale <= 0:
        raise ValueError(f"examples is {quote(examples)}; give pairs such as '0:0 1:1 2:4', and a scale above 0")
    x, y = pairs.T
    scales = (scale / 10, scale, 10 * scale)
    weights = torch.stack([attend(ask, x, each) for each in scales])  # (3, N)
    answers = (weights @ y).tolist()
    nearest = int((x - ask).abs().argmin())
    errors = {speed: [error(speed, each) for each in SCALES] for speed in SPEEDS}
    best = {speed: SCALES[row.index(min(row))] for speed, row in errors.items()}

    def draw() -> Any:
        figure, axes = new(2, 1, 9.5, 3.2)
        axes[0, 0].imshow(weights.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes[0, 0].set_xticks(range(len(x)), [f"{a:g}:{b:g}" for a, b in pairs.tolist()])
        axes[0, 0].set_yticks(range(3), [f"scale {each:g}" for each in scales])
        axes[0, 0].set_title(f"attention of x = {ask:g} to the examples", fontsize=10)
        for speed, row in errors.items():
            axes[0, 1].plot(SCALES, row, "o-", label=f"sin({speed:g} x)")
            axes[0, 1].plot(best[speed], min(row), "k*", markersize=10, zorder=3)
        axes[0, 1].set(xscale="log", yscale="log", xlabel="scale", ylabel="mean squared error")
        axes[0, 1].legend(frameon=False, fontsize=8)
        axes[0, 1].set_title("error by scale; * is the best scale", fontsize=10)
        return figure

    return Shown(
        f"At {ask:g}, attention with scale {scale:g} answers {answers[1]:.2f}; with {scales[0]:g} it answers "
        f"{answers[0]:.2f} (the nearest example has {float(y[nearest]):g}), with {scales[2]:g} {answers[2]:.2f} "
        f"(the mean is {float(y.mean()):.2f}). The best scale is {best[SPEEDS[0]]:g} for sin({SPEEDS[0]:g} x) and "
        f"{best[SPEEDS[-1]]:g} for sin({SPEEDS[-1]:g} x).",
        [Table(f"weights of the examples x:y, for the question x = {ask:g}",
               ("scale", *(f"{a:g}:{b:g}" for a, b in pairs.tolist()), "answer"),
               [[each, *row, answer] for each, row, answer in zip(scales, weights.tolist(), answers, strict=True)]),
         Table("mean squared error of the answers, 200 noisy examples",
               ("function", *(f"scale {each:g}" for each in SCALES), "best scale"),
               [[f"sin({speed:g} x)", *row, best[speed]] for speed, row in errors.items()])],
        draw,
    )  # fmt: skip


def error(speed: float, scale: float, seed: int = 0) -> float:
    """Return the mean squared error of the answers for sin(speed x) on [-3, 3], from 200 examples with noise."""
    draws = torch.Generator().manual_seed(seed)
    x = 6 * torch.rand(200, generator=draws) - 3
    y = torch.sin(speed * x) + NOISE * torch.randn(200, generator=draws)
    at = torch.linspace(-3, 3, 200)
    answers = (-((x[None] - at[:, None]) ** 2) / (2 * scale**2)).softmax(-1) @ y
    return float((answers - torch.sin(speed * at)).square().mean())


def attend(at: float, x: torch.Tensor, scale: float) -> torch.Tensor:
    return (-((x - at) ** 2) / (2 * scale**2)).softmax(-1)
