"""Diffusion: add noise to a picture step by step, then start from pure noise and remove it step by step.

The denoiser is exact: it knows nine kinds of drawings (colors and shapes) and computes the mean of all drawings that
fit the noisy picture, weighted by a softmax of minus the squared distance. A text selects the drawings that it may
use. A diffusion model learns to approximate this mean [Ho et al. 2020; Song et al. 2021].
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from anyformer.generation.diffusion import remove_noise
from anyformer.look.figures import new
from anyformer.parts.diffusion import NoiseSchedule
from anyformer.specs.messages import amount, quote
from anyformer_course.shown import Shown, Table
from anyformer_course.shows.clip import COLORS, SHAPES, draw_shape


def example(
    text: str = "red square", *, steps: int = 20, curve: Literal["linear", "cosine"] = "linear", seed: int = 0
) -> Shown:
    """Draw `text` (a color, a shape, or both) from noise in `steps` steps with a noise schedule of 1000 steps."""
    words = text.split()
    if not words or any(word not in (*COLORS, *SHAPES) for word in words):
        raise ValueError(f"the text must be of the words {', '.join((*COLORS, *SHAPES))}")
    if curve not in ("linear", "cosine") or not 2 <= steps <= 200:
        raise ValueError("curve must be 'linear' or 'cosine', and steps 2 to 200")
    draws = torch.Generator().manual_seed(seed)
    names = [(color, shape) for color in COLORS for shape in SHAPES for _ in range(8)]
    album = torch.stack([draw_shape(*name, draws) for name in names]) * 2 - 1  # (72, 3, 12, 12), from -1 to 1
    fits = torch.tensor([all(word in name for word in words) for name in names])
    if not bool(fits.any()):
        raise ValueError(f"no drawing fits {quote(text)}: write at most one color and one shape")
    schedule = NoiseSchedule(curve=curve)
    alphas = schedule.alphas_cumprod().tolist()
    noise = torch.randn(album.shape[1:], generator=draws)
    clean = album[int(fits.nonzero()[0])]
    forward = [[t, alphas[t], alphas[t] ** 0.5, (1 - alphas[t]) ** 0.5,
                cosine(clean, noisy(clean, noise, alphas[t]))] for t in (0, 100, 250, 500, 750, 999)]  # fmt: skip
    x, times, backward, frames = noise.clone(), schedule.sampling_steps(steps), [], []
    for i, t in enumerate(times):
        then = alphas[times[i + 1]] if i + 1 < len(times) else 1.0
        weights, mean = denoise(x, album[fits], alphas[t])
        guess = (x - alphas[t] ** 0.5 * mean) / (1 - alphas[t]) ** 0.5  # the noise that this mean implies
        backward.append([i + 1, t, alphas[t], float(weights.max()), float((x - mean).square().mean().sqrt())])
        frames.append(x)
        x = remove_noise(x, guess, alphas[t], then)
    nearest = int((album - x).square().sum((1, 2, 3)).argmin())

    def draw() -> Any:
        figure, axes = new(6, 2, 10, 3.8)
        for axis, row in zip(axes[0], forward):
            paint(axis, noisy(clean, noise, row[1]), f"step {row[0]}: {100 * row[1]:.0f} %")
        chosen = [frames[round(k * (len(frames) - 1) / 4)] for k in range(5)]
        for axis, frame, k in zip(axes[1], (*chosen, x), (*range(5), None)):
            paint(axis, frame, "result" if k is None else f"{round(k * (len(frames) - 1) / 4)} steps done")
        figure.suptitle("above: adding noise (share of the picture's variance); below: removing it", fontsize=9)
        return figure

    return Shown(
        f"from pure noise, {amount(steps, 'step')} draw a {' '.join(names[nearest])} (asked for: {text}); after 500 "
        "of 1000 "
        f"steps of noise {100 * alphas[500]:.0f} % of the variance is the picture's.",
        [
            Table("adding noise: x_t = sqrt(a) x + sqrt(1 - a) noise",
                  ("step", "a (alpha bar)", "factor of the picture", "factor of the noise",
                   "cosine with the picture"), forward),
            Table("removing noise", ("number", "step", "a (alpha bar)", "largest weight of a drawing",
                                     "distance from the predicted picture"), backward),
        ],
        draw,
    )  # fmt: skip


def noisy(picture: Tensor, noise: Tensor, left: float) -> Tensor:
    return left**0.5 * picture + (1 - left) ** 0.5 * noise


def denoise(x: Tensor, album: Tensor, left: float) -> tuple[Tensor, Tensor]:
    """Return the weight of each drawing and their mean: the expected picture behind the noisy x."""
    distance = (x - left**0.5 * album).square().sum((1, 2, 3))
    weights = (-distance / (2 * (1 - left))).softmax(0)
    return weights, (weights[:, None, None, None] * album).sum(0)


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a.flatten(), b.flatten(), 0))


def paint(axis: Any, picture: Tensor, title: str) -> None:
    axis.imshow(((picture + 1) / 2).clamp(0, 1).permute(1, 2, 0).numpy())
    axis.set_title(title, fontsize=8)
    axis.set_axis_off()
