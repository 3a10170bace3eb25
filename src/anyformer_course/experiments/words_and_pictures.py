"""Words and pictures: a small CLIP names pictures of colored shapes, even combinations that it has never seen.

Two towers learn from drawn shapes and their captions [Radford et al. 2021]; one combination of color and shape in eight
is held out. Each new picture is then matched with one of the names of all 64 combinations ("red star"), without any
training on labels. Pictures of held-out combinations can be correct only if color and shape were learned separately.

The image tower is a ResNet, one of the paper's two kinds. The ResNet and the text tower's single layer were chosen
after looking at the results of one seed: within minutes a small ViT learns colors and hardly any shapes. The claim was
made before that and has not changed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from anyformer import families
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import LEARNED
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.models import Model
from anyformer.parts.embedding.convolution import ConvolutionEmbedding
from anyformer.parts.grid.convolution import Convolution
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.pooling import MeanTokens
from anyformer.parts.head.similarity import ProjectionHead
from anyformer.recipes.shapes import TEXT
from anyformer.recipes.shapes import run as shapes
from anyformer.specs.codec import override
from anyformer.train.trainer import Trainer
from anyformer_course.data.drawings import PALETTE, SHAPES, SIDE, draw_shapes, write_shapes
from anyformer_course.lab.runs import mean

NAMES = [f"{colour} {shape}" for colour, shape in product(PALETTE, SHAPES)]
CHANCE = 1 / len(NAMES)
CLAIM = (
    f"with every seed, at least half of the pictures of held-out combinations are matched with their name among all "
    f"{len(NAMES)} (chance: {100 * CHANCE:.1f} %); "
    f"judged if at least {100 * LEARNED:.0f} % of the pictures of the other combinations are"
)
FORMS = {
    "tiny": Form(0.2, 0.1, {"width": 16, "depth": 1, "steps": 2, "pictures": 200, "asked": 40}),
    "small": Form(3, 1, {"width": 64, "depth": 1, "steps": 600, "pictures": 4000, "asked": 2000, "seeds": 3}),
    "full": Form(60, 6, {"width": 192, "depth": 2, "steps": 4000, "pictures": 20000, "asked": 8000, "seeds": 5}),
}
PARTS = ("unseen", "seen")  # combinations of color and shape
trials = TrialGrid("seed-{seed}", seed="seeds")


def work(values: Values, place: Place) -> list[Row]:
    width, depth, steps = values["width"], values["depth"], values["steps"]
    write = partial(write_shapes, seed=0, progress=lambda done, total: None, count=values["pictures"])
    text = TEXT | {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": depth}
    clip = families.find("clip").read({"text_config": text, "projection_dim": width})
    run = override(
        shapes(place.data("shapes", write)),
        {
            "model": clip.replace(image=image_tower(width, depth)),
            "steps": steps,
            "seed": values["seed"],
            "schedule.warmup": max(steps // 20, 1),
            "evaluate.every": max(steps // 6, 1),
            "evaluate.batches": 2,
            "keep.every": steps,
            "keep.best": False,
        },
    )
    pictures, rows = draw_shapes(values["asked"], seed=1)
    return shares_right(choose_names(place.train(run), pictures), rows)


def image_tower(width: int, depth: int) -> Model:
    """Return a ResNet with three stages of `depth` blocks; the last has width `width`."""
    widths = [width // 4, width // 2, width]
    config = {"embedding_size": widths[0], "hidden_sizes": widths, "depths": [depth] * 3, "layer_type": "basic"}
    stem = ConvolutionEmbedding(layers=(Convolution(stride=2),), pool=None, image_size=(SIDE, SIDE))
    head = ProjectionHead(pool=Pool(take=MeanTokens()), width=width, name="image_embeds")
    return override(families.find("resnet").read(config), {"embedding": stem, "head": head})


def choose_names(trainer: Trainer, pictures: np.ndarray) -> list[str]:
    """Return the most similar name for each picture."""
    objective, filler = trainer.objective, trainer.tokenizer.filler

    def collate(examples: list[dict[str, Any]]) -> Any:
        encoded: list[Any] = [objective.encode(each, trainer.tokenizer) for each in examples]
        return objective.collate(encoded, filler)

    texts = collate([{"image": pictures[0], "text": name} for name in NAMES])
    names: list[str] = []
    with trainer.eval_mode():
        for start in range(0, len(pictures), 200):
            shown = collate([{"image": each, "text": NAMES[0]} for each in pictures[start : start + 200]])
            inputs = trainer.to_device({**texts, "pixel_values": shown["pixel_values"]})
            names += [NAMES[i] for i in trainer.model(**inputs).logits_per_image.argmax(-1).tolist()]
    return names


def shares_right(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> list[Row]:
    """Return a row for unseen and a row for seen combinations: shares with the correct name, color and shape."""
    shares: list[Row] = []
    for part in PARTS:
        group = [(name.split(), row) for name, row in zip(names, rows) if row["unseen"] == (part == "unseen")]
        right = torch.tensor(
            [(colour == row["colour"], shape == row["shape"]) for (colour, shape), row in group]
        ).float()
        colour, shape = right.mean(0).tolist()
        shares.append({"pairs": part, "name": float(right.prod(1).mean()), "colour": colour, "shape": shape})
    return shares


# -- results ----------------------------------------------------------------------------------------------------------


def shares(rows: Sequence[Row], part: str, field: str = "name") -> list[float]:
    """Return the share per seed."""
    return [row[field] for row in rows if row["pairs"] == part]


def claim(rows: Sequence[Row]) -> Verdict:
    return Verdict(
        min(shares(rows, "unseen")) >= 0.5,
        {
            **{f"correct, {part} pairs": ", ".join(f"{each:.3f}" for each in shares(rows, part)) for part in PARTS},
            **{f"{what} correct, unseen pairs": mean(shares(rows, "unseen", what)) for what in ("colour", "shape")},
            "chance": CHANCE,
        },
        min(shares(rows, "seen")) >= LEARNED,
    )


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 1, 9, 4)
    for axis, part in zip(axes[0], PARTS, strict=True):
        for x, what in enumerate(("name", "colour", "shape")):
            right = shares(rows, part, what)
            axis.bar(x, mean(right), color="#cccccc")
            axis.plot([x] * len(right), right, "o", color="C0")
            axis.hlines(CHANCE if what == "name" else CHANCE**0.5, x - 0.4, x + 0.4, "C1", linestyle=":")
        axis.set_xticks(range(3), ("both", "colour", "shape"))
        axis.set(title=f"correct, {part} pairs; one point per seed, dotted: chance", ylim=(0, 1.05))
        axis.grid(alpha=0.3)
    return figure
