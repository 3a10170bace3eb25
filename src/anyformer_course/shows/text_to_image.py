"""A small DiT that draws emoji from a text: what the recipe `emoji-dit` learned, and how often it draws what was asked.

The pictures and the figures are stored results of `benchmarks/emoji_dit.py`. The model is trained from scratch: a text
encoder, and a denoiser whose layers read the text by cross-attention [Rombach et al. 2022; Peebles and Xie 2023].
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from anyformer.look.figures import new
from anyformer_course.results import PLOTS
from anyformer_course.shown import Shown, Table

STORED = Path(__file__).parents[1] / "pictures" / "emoji_dit.json"
SHEET = "emoji-dit.png"


def example(guidance: int = 4) -> Shown:
    """Show four pictures of each text, and the share of faces in the right color with a `guidance` of 1 (none) or 4."""
    stored = json.loads(STORED.read_text("utf-8"))
    shares = {kind: share for kind, share in stored["shares"].items() if kind.endswith(f"guidance {guidance}")}
    if not shares:
        raise ValueError(f"guidance is {guidance}; stored are 1 (none) and 4")
    trained, held_out = (100 * share for share in shares.values())

    def draw() -> Any:
        from matplotlib.pyplot import imread

        pixels = imread(next(folder / SHEET for folder in PLOTS if (folder / SHEET).is_file()))
        texts = stored["texts"]
        figure, axes = new(1, 1, 5, 0.62 * len(texts) + 0.4)
        axes[0, 0].imshow(pixels)
        rows = pixels.shape[0] / len(texts)
        axes[0, 0].set_yticks([rows * (i + 0.5) for i in range(len(texts))], texts)
        axes[0, 0].set_xticks([])
        axes[0, 0].set_title("four pictures of each text, guidance 4", fontsize=9)
        return figure

    return Shown(
        f"With guidance {guidance}, {trained:.0f} % of the faces with names from the training, and {held_out:.0f} % of "
        "those with new names, have the color that the name says; chance is 25 %.",
        [
            Table("faces in the right color (yellow, angry red, cold blue, sick green)", ("names", "share"),
                  [*stored["shares"].items()]),
            Table("the training", ("what", "value"), [*stored["training"].items()]),
        ],
        draw,
    )  # fmt: skip
