"""Softmax attention over examples is a soft nearest neighbour: the answer is a mean of the values of similar examples.

Scores are -(x - x_i)^2 / (2 scale^2). A small scale attends to the nearest example only, a large scale to all of them
[Collins et al. 2024].
"""

from __future__ import annotations

from typing import Any

import torch

from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table


def example(examples: str = "0:0 1:1 2:4 3:9 4:16", *, ask: float = 2.4, scale: float = 0.5) -> Shown:
    """Predict y at x = `ask` from `examples` x:y."""
    try:
        pairs = torch.tensor([[float(each) for each in pair.split(":")] for pair in examples.split()])
    except ValueError:
        pairs = torch.zeros(0)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or scale <= 0:
        raise ValueError(f"examples is {examples!r}; give pairs such as '0:0 1:1 2:4', and a scale above 0")
    x, y = pairs.T
    scales = (scale / 10, scale, 10 * scale)
    weights = torch.stack([attend(ask, x, each) for each in scales])  # (3, N)
    answers = (weights @ y).tolist()
    nearest = int((x - ask).abs().argmin())

    def draw() -> Any:
        figure, axes = new(2, 1, 9.5, 3.2)
        axes[0, 0].imshow(weights.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes[0, 0].set_xticks(range(len(x)), [f"{a:g}:{b:g}" for a, b in pairs.tolist()])
        axes[0, 0].set_yticks(range(3), [f"scale {each:g}" for each in scales])
        axes[0, 0].set_title(f"attention of x = {ask:g} to the examples", fontsize=10)
        line = torch.linspace(float(x.min()), float(x.max()), 200)
        for each in scales:
            curve = [float(attend(float(at), x, each) @ y) for at in line]
            axes[0, 1].plot(line.tolist(), curve, label=f"scale {each:g}")
        axes[0, 1].plot(x.tolist(), y.tolist(), "ko")
        axes[0, 1].legend(frameon=False, fontsize=8)
        axes[0, 1].set_title("answer by x", fontsize=10)
        return figure

    return Shown(
        f"At {ask:g}, attention with scale {scale:g} answers {answers[1]:.2f}; with {scales[0]:g} it answers "
        f"{answers[0]:.2f} (the nearest example has {float(y[nearest]):g}), with {scales[2]:g} {answers[2]:.2f} "
        f"(the mean is {float(y.mean()):.2f}).",
        [Table("weights", ("scale", *(f"{a:g}:{b:g}" for a, b in pairs.tolist()), "answer"),
               [[each, *row, answer] for each, row, answer in zip(scales, weights.tolist(), answers, strict=True)])],
        draw,
    )  # fmt: skip


def attend(at: float, x: torch.Tensor, scale: float) -> torch.Tensor:
    return (-((x - at) ** 2) / (2 * scale**2)).softmax(-1)
