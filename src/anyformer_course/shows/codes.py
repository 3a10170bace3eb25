"""Discrete image codes: an autoencoder turns a picture into a grid of numbers, which follow the words of a text.

A small autoencoder with rounded codes learns drawings of colored shapes. The decoder of DALL-E then reads a caption and
predicts the codes of its picture one by one, like words [Ramesh et al. 2021; Mentzer et al. 2024].
"""

from __future__ import annotations

import math
from typing import Any

import torch

import anyformer as af
from anyformer.look.figures import new
from anyformer.models import AutoencoderModel
from anyformer.parts.embedding.autoencoder import ConvEmbedding
from anyformer.parts.grid.dvae import ConvDecoder, RoundedCodes
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table
from anyformer_course.shows.clip import COLORS, SHAPES, SIDE, draw_shape


def example(text: str = "red square", *, levels: int = 4, steps: int = 80, seed: int = 0) -> Shown:
    """Encode a drawing of `text` (a color and a shape) with codes of three numbers, each of `levels` levels."""
    words = text.split()
    if len(words) != 2 or words[0] not in COLORS or words[1] not in SHAPES:
        raise ValueError(f"the text must be a color ({', '.join(COLORS)}) and a shape ({', '.join(SHAPES)})")
    if not 2 <= levels <= 16:
        raise ValueError(f"levels is {levels}; it must be 2 to 16")
    spec = AutoencoderModel(
        width=24,
        embedding=ConvEmbedding(image_size=(SIDE, SIDE), channels=3, widths=(12, 24), kernel=3, blocks=1),
        latent=RoundedCodes(levels=(levels,) * 3, width=16),
        image_decoder=ConvDecoder(channels=3, widths=(24, 12), blocks=1),
    )
    model: Any = af.build(spec, seed=seed)
    draws, optimizer = torch.Generator().manual_seed(seed), torch.optim.Adam(model.parameters(), lr=4e-3)
    album = torch.stack([draw_shape(color, shape, draws) for color in COLORS for shape in SHAPES for _ in range(6)])
    losses = []
    for _ in range(steps):
        batch = album[torch.randperm(len(album), generator=draws)[:12]]
        loss = (model(pixel_values=batch).reconstruction - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    picture = draw_shape(words[0], words[1], torch.Generator().manual_seed(99))
    with torch.no_grad():
        codes = model.eval().codes(picture[None])
        again = model.picture(codes)[0]
    grid = codes.reshape(-1).tolist()
    side, number = math.isqrt(len(grid)), levels**3
    error = float((again - picture).square().mean())
    bits = [3 * SIDE * SIDE * 8, len(grid) * math.log2(number)]
    sequence = [[i, token, kind] for i, (token, kind) in enumerate(
        [(word, "word") for word in words] + [(f"code {code}", "code") for code in grid[:10]])]  # fmt: skip

    def draw() -> Any:
        figure, axes = new(3, 1, 10, 3.6)
        for axis, each, title in ((axes[0, 0], picture, "picture"), (axes[0, 2], again, "decoded from the codes")):
            axis.imshow(each.clamp(0, 1).permute(1, 2, 0).numpy())
            axis.set_title(f"{title}, {SIDE} x {SIDE}", fontsize=9)
            axis.set_axis_off()
        axes[0, 1].imshow(torch.tensor(grid).view(side, side).numpy(), cmap="tab20")
        for i, code in enumerate(grid):
            axes[0, 1].text(i % side, i // side, str(code), ha="center", va="center", fontsize=7)
        axes[0, 1].set_title(f"{side} x {side} codes of {number}", fontsize=9)
        axes[0, 1].set_axis_off()
        return figure

    return Shown(
        f"{SIDE} x {SIDE} pixels become {amount(len(grid), 'code')}, each one of {number} ({len(set(grid))} "
        "different ones are "
        f"used): {bits[0]} bits become {bits[1]:.0f}; the decoded picture has a squared error of {error:.4f}.",
        [
            Table("codes", ("row", *map(str, range(side))),
                  [[r, *grid[r * side : (r + 1) * side]] for r in range(side)]),
            Table("the sequence that a decoder learns: the caption, then the codes (the first 10)",
                  ("position", "token", "kind"), sequence),
            Table("training", ("what", "number"), [["loss before", losses[0]] if losses else ["loss before", None],
                  ["loss after", losses[-1]] if losses else ["loss after", None], ["error of your picture", error],
                  ["tokens of the picture as pixels", SIDE * SIDE], ["tokens as codes", len(grid)]]),
        ],
        draw,
    )  # fmt: skip
