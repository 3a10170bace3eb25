"""What a ViT learns about space: alike position vectors for near patches, heads that look near or far, and filters.

A whole ViT needs many pictures, so only the core is trained here: one attention layer whose scores come from learned
position vectors predicts the color of a hidden patch from the others. Nothing tells it which patches are neighbours
[Dosovitskiy et al. 2021, figure 7].
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.look.figures import new
from anyformer.look.vision import sheet
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table

SIDE, PATCH, WIDTH, HEADS = 28, 4, 16, 4
GRID = SIDE // PATCH


def example(*, steps: int = 300, frequency: float = 0.12, seed: int = 0) -> Shown:
    """Train for `steps` steps on smooth pictures; a higher `frequency` makes them change faster from pixel to pixel."""
    draws = torch.Generator().manual_seed(seed)
    position = (0.02 * torch.randn(GRID**2, WIDTH, generator=draws)).requires_grad_()
    q, k = ((torch.randn(HEADS, WIDTH, 8, generator=draws) / 2).requires_grad_() for _ in range(2))
    share = torch.full((HEADS,), 1 / HEADS, requires_grad=True)  # what each head adds
    optimizer, losses = torch.optim.Adam([position, q, k, share], lr=2e-2), []
    for _ in range(steps):
        colors = F.avg_pool2d(pictures(32, frequency, draws), PATCH).flatten(2).transpose(1, 2)  # (B, patches, 3)
        guess = (attention(position, q, k)[None] @ colors[:, None] * share[:, None, None]).sum(1)
        loss = (guess - colors).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    with torch.no_grad():
        weights, cosine = attention(position, q, k), F.normalize(position, dim=1) @ F.normalize(position, dim=1).T
    cells = torch.cartesian_prod(torch.arange(GRID), torch.arange(GRID)).float()
    apart = torch.cdist(cells, cells)
    bands = {"1 (neighbours)": (0.9, 1.1), "1.4 to 2": (1.1, 2.1), "2 to 4": (2.1, 4.1), "more than 4": (4.1, 99.0)}
    rows = [[name, float(cosine[(apart > low) & (apart < high)].mean())] for name, (low, high) in bands.items()]
    distances = [float((each * apart).sum(-1).mean()) for each in weights]
    patches = F.unfold(pictures(200, frequency, draws), PATCH, stride=PATCH).transpose(1, 2).flatten(0, 1)
    parts = torch.linalg.svd(patches - patches.mean(0), full_matrices=False)
    variance = (parts.S.square() / parts.S.square().sum()).tolist()
    filters = parts.Vh[:12].view(-1, 3, PATCH, PATCH).permute(0, 2, 3, 1)

    def draw() -> Any:
        figure, axes = new(3, 1, 12, 4)
        low, high = filters.amin((1, 2, 3), keepdim=True), filters.amax((1, 2, 3), keepdim=True)
        axes[0, 0].imshow(sheet((filters - low) / (high - low), 4, 1.0).numpy(), interpolation="nearest")
        axes[0, 0].set_title("principal components of the patches", fontsize=9)
        axes[0, 1].imshow(sheet(cosine.view(-1, GRID, GRID), GRID).numpy(), vmin=-1, vmax=1)
        axes[0, 1].set_title("cosine of position vectors: a map per patch", fontsize=9)
        axes[0, 2].bar([f"head {i + 1}" for i in range(HEADS)], distances)
        axes[0, 2].set_title("mean attention distance in patches", fontsize=9)
        for axis in axes[0, :2]:
            axis.set_axis_off()
        return figure

    return Shown(
        f"after {amount(steps, 'step')} the cosine of position vectors is {rows[0][1]:.2f} for neighbours and "
        f"{rows[-1][1]:.2f} "
        f"for patches more than 4 apart; heads attend {min(distances):.2f} to {max(distances):.2f} patches far.",
        [
            Table("cosine of position vectors", ("patches apart", "mean cosine"), rows),
            Table("heads", ("head", "mean attention distance"), [[i + 1, each] for i, each in enumerate(distances)]),
            Table("principal components of the patches", ("component", "share of the variance"),
                  [[i + 1, each] for i, each in enumerate(variance[:6])]),
            Table("loss", ("when", "squared error of a hidden patch"),
                  [["first step", losses[0]], ["last step", losses[-1]]] if losses else [["not trained", None]]),
        ],
        draw,
    )  # fmt: skip


def attention(position: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Return the weights (heads, patches, patches); a patch does not attend to itself, because it is hidden."""
    scores = (position @ q) @ (position @ k).transpose(1, 2) * 8
    return scores.masked_fill(torch.eye(len(position)).bool(), float("-inf")).softmax(-1)


def pictures(number: int, frequency: float, draws: torch.Generator) -> Tensor:
    """Return smooth pictures (number, 3, SIDE, SIDE): one wave of random direction per color."""
    wave = frequency * torch.randn(number, 3, 2, 1, 1, generator=draws)
    phase = 6.28 * torch.rand(number, 3, 1, 1, generator=draws)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    return (wave[:, :, 0] * y + wave[:, :, 1] * x + phase).cos()
