"""Inside a ViT: similarity of its position vectors, filters of its patches, and how far each head attends.

A small ViT learns in a few seconds where a drawn shape is. Nothing tells it which patches are neighbours; it learns
position vectors that are alike for patches in the same row or column [Dosovitskiy et al. 2021, figure 7].
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import anyformer as af
from anyformer import families
from anyformer.look.figures import new
from anyformer.look.vision import attention_distance, filters, position_likeness, sheet
from anyformer_course.shown import Shown, Table

SIDE, PATCH = 20, 4
GRID = SIDE // PATCH


def example(*, steps: int = 90, seed: int = 0) -> Shown:
    """Train for `steps` steps on squares at random places, then measure; `steps=0` is the model before training."""
    config = {
        "architectures": ["ViTForImageClassification"], "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 64, "image_size": SIDE, "patch_size": PATCH, "num_channels": 3,
        "num_labels": 2 * SIDE, "hidden_dropout_prob": 0.0,
    }  # fmt: skip
    model: Any = af.build(families.find("vit").read(config), seed=seed)
    draws, optimizer = torch.Generator().manual_seed(seed), torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        pixels, place = squares(40, draws)
        scores = model(pixel_values=pixels).logits.unflatten(1, (2, SIDE))
        loss = F.cross_entropy(scores.flatten(0, 1), place.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    model.eval()
    likeness = position_likeness(model)  # (rows, columns, rows, columns)
    pixels, place = squares(64, torch.Generator().manual_seed(9))
    with torch.no_grad():
        run = af.trace(model, pixel_values=pixels)
    right = float((run.output.logits.unflatten(1, (2, SIDE)).argmax(-1) - place).abs().float().mean())
    cells = torch.cartesian_prod(torch.arange(GRID), torch.arange(GRID)).float()
    flat, apart = likeness.reshape(GRID**2, GRID**2), torch.cdist(cells, cells)
    same_line = (cells[:, None] == cells[None]).any(-1)
    kinds = {
        "neighbours": apart == 1, "same row or column, farther": same_line & (apart > 1), "others": ~same_line,
    }  # fmt: skip
    rows = [[name, float(flat[chosen].mean())] for name, chosen in kinds.items()]
    distances = {name: each.tolist() for name, each in attention_distance(run).items()}
    components = filters(model, 12)

    def draw() -> Any:
        figure, axes = new(3, 1, 12, 4)
        low, high = components.amin((1, 2, 3), keepdim=True), components.amax((1, 2, 3), keepdim=True)
        axes[0, 0].imshow(sheet((components - low) / (high - low), 4, 1.0).numpy(), interpolation="nearest")
        axes[0, 0].set_title("12 principal filters of the patches", fontsize=9)
        axes[0, 1].imshow(sheet(likeness.flatten(0, 1), GRID).numpy(), vmin=-1, vmax=1)
        axes[0, 1].set_title("cosine of position vectors: a map per patch", fontsize=9)
        for layer, values in enumerate(distances.values(), 1):
            axes[0, 2].plot([layer] * len(values), values, "o")
        axes[0, 2].set(xlabel="layer", ylabel="patches", xticks=(1, 2))
        axes[0, 2].set_title("mean attention distance of each head", fontsize=9)
        for axis in axes[0, :2]:
            axis.set_axis_off()
        return figure

    ends = [min(map(min, distances.values())), max(map(max, distances.values()))]
    return Shown(
        f"after {steps} steps the cosine of position vectors is {rows[0][1]:.2f} for neighbours, {rows[1][1]:.2f} in "
        f"the same row or column and {rows[2][1]:.2f} for other patches; heads attend {ends[0]:.2f} to {ends[1]:.2f} "
        "patches far on average.",
        [
            Table("cosine of position vectors", ("patches", "mean cosine"), rows),
            Table("mean attention distance in patches", ("layer", *(f"head {i + 1}" for i in range(4))),
                  [[name, *values] for name, values in distances.items()]),
            Table("training", ("what", "number"), [
                ["loss before", losses[0] if losses else None], ["loss after", losses[-1] if losses else None],
                ["mean error of the square's row and column, pixels", right],
            ]),
        ],
        draw,
    )  # fmt: skip


def squares(number: int, draws: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pictures (number, 3, SIDE, SIDE) of a square of 4 x 4 pixels, and its row and column (number, 2)."""
    place = torch.randint(0, SIDE, (number, 2), generator=draws)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    inside = ((y - place[:, 0, None, None]).abs() <= 2) & ((x - place[:, 1, None, None]).abs() <= 2)
    color = torch.rand(number, 3, 1, 1, generator=draws) * 0.5 + 0.5
    return inside[:, None] * color + 0.1 * torch.randn(number, 3, SIDE, SIDE, generator=draws), place
