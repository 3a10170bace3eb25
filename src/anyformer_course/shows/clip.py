"""CLIP's matrix: the cosine of every picture with every text; training makes the diagonal the largest.

Two small towers, one for pictures and one for texts, learn from drawings of colored shapes and their names. Any text
about colors and shapes can then be compared with the pictures [Radford et al. 2021].
"""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer import families
from anyformer.look import figures
from anyformer.specs.field_types import Natural
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table

COLORS = {"red": (1.0, 0.1, 0.1), "green": (0.1, 0.8, 0.2), "blue": (0.2, 0.3, 1.0)}
SHAPES = ("square", "circle", "cross")
WORDS = ("<start>", "<end>", *COLORS, *SHAPES)
SIDE = 12  # pixels


def example(texts: str = "red square / green circle / blue cross", *, steps: Natural = 120, seed: int = 0) -> Shown:
    """Train on all nine names and drawings, then compare `texts`, separated by "/", with their drawings."""
    captions = [each.split() for each in texts.split("/") if each.split()]
    if not 2 <= len(captions) <= 9 or any(len(e) != 2 or e[0] not in COLORS or e[1] not in SHAPES for e in captions):
        colors, shapes = ", ".join(COLORS), ", ".join(SHAPES)
        raise ValueError(f"give two to nine texts separated by '/': a color ({colors}) and a shape ({shapes})")
    model: Any = af.build(description(), seed=seed)
    pairs = [[color, shape] for color in COLORS for shape in SHAPES]
    draws, optimizer = torch.Generator().manual_seed(seed), torch.optim.Adam(model.parameters(), lr=1.2e-3)
    before = matrix(model, captions)
    album = [torch.stack([draw_shape(pair[0], pair[1], draws) for pair in pairs]) for _ in range(12)]
    right, losses = torch.arange(len(pairs)), []
    for step in range(steps):
        scores = model(input_ids=encode(pairs), pixel_values=album[step % len(album)]).logits_per_image
        loss = (scores.log_softmax(0)[right, right].mean() + scores.log_softmax(1)[right, right].mean()) / -2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    after = matrix(model, captions)
    names = [" ".join(pair) for pair in captions]
    hits = int((after.argmax(1) == torch.arange(len(captions))).sum())

    def draw() -> Any:
        figure = figures.heat_maps(
            [before, after], ["before training", "after training"], "cosine of picture and text", names, (-1, 1)
        )
        figure.set_size_inches(8, 3.6)
        return figure

    def table(title: str, cosines: torch.Tensor) -> Table:
        rows = [[f"picture of a {name}", *row] for name, row in zip(names, cosines.tolist(), strict=True)]
        return Table(title, ("picture", *names), rows)

    return Shown(
        f"After {amount(steps, 'step')} {hits} of {len(captions)} pictures are closest to their own text"
        + (f"; the loss fell from {losses[0]:.2f} to {losses[-1]:.2f}." if steps else "."),
        [table("cosines after training", after), table("cosines before training", before)],
        draw,
    )


@torch.no_grad()
def matrix(model: Any, pairs: list[list[str]]) -> torch.Tensor:
    """Return the cosines (pictures, texts), on drawings that were not trained on."""
    draws = torch.Generator().manual_seed(99)
    pixels = torch.stack([draw_shape(pair[0], pair[1], draws) for pair in pairs])
    output = model(input_ids=encode(pairs), pixel_values=pixels)
    return output.image_embeds @ output.text_embeds.T


def encode(pairs: list[list[str]]) -> torch.Tensor:
    return torch.tensor([[WORDS.index(word) for word in ("<start>", *pair, "<end>")] for pair in pairs])


def draw_shape(color: str, shape: str, draws: torch.Generator) -> torch.Tensor:
    """Draw a shape (3, SIDE, SIDE) at a random place, with a little noise."""
    row, column = (5 + 2 * torch.rand(2, generator=draws)).tolist()
    y, x = torch.meshgrid(torch.arange(SIDE) - row, torch.arange(SIDE) - column, indexing="ij")
    area = {
        "square": (y.abs() < 3) & (x.abs() < 3), "circle": (y**2 + x**2).sqrt().sub(2.8).abs() < 1,
        "cross": (y.abs() < 1) & (x.abs() < 4) | (x.abs() < 1) & (y.abs() < 4),
    }[shape]  # fmt: skip
    picture = torch.where(area, torch.tensor(COLORS[color])[:, None, None], torch.tensor(0.0))
    return picture + 0.05 * torch.randn(3, SIDE, SIDE, generator=draws)


def description() -> Any:
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**tower, "vocab_size": len(WORDS), "max_position_embeddings": 4, "eos_token_id": 1, "bos_token_id": 0}
    image = {**tower, "image_size": SIDE, "patch_size": 3}
    config = {"architectures": ["CLIPModel"], "projection_dim": 16, "text_config": text, "vision_config": image}
    return families.find("clip").read(config)
