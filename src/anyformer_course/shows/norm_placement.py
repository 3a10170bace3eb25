"""Pre-norm and post-norm: gradients by layer before the first step of training.

In post-norm the gradient of the last layers is large, which is why the first Transformers needed warm-up; in pre-norm
it becomes smaller towards the last layers [Xiong et al. 2020].
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.look import figures
from anyformer.parts.norm import LayerNorm
from anyformer.specs.field_types import Count
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._small import decoder

TEXT = "The detective investigated the case for weeks, and found nothing but a glove."
PLACES = {"post-norm": ("out_norm",), "pre-norm": ("pre_norm",), "sandwich": ("pre_norm", "post_norm"), "none": ()}


def example(text: str = TEXT, *, depth: int = 12, width: Count = 64, seed: int = 0) -> Shown:
    """Measure the gradient of the feed-forward's second matrix in every layer, for four placements of the norm."""
    data = text.encode()[:64]
    if len(data) < 2:
        raise ValueError("the text is too short; write at least two letters")
    if not 1 <= depth <= 48:
        raise ValueError(f"depth is {depth}; it must be from 1 to 48")
    ids = torch.tensor([list(data)])
    gradients = {name: measure(place, ids, depth, width, seed) for name, place in PLACES.items()}
    last = {name: values[-1] for name, values in gradients.items()}

    def draw() -> Any:
        figure, axes = figures.new(1, 1, 6.5, 3.6)
        for name, values in gradients.items():
            if name != "none":  # too large for the same axis
                axes[0, 0].plot(range(1, depth + 1), values, "o-", label=name, markersize=4)
        axes[0, 0].set(yscale="log", xlabel="layer", title="gradient of the feed-forward before the first step")
        axes[0, 0].legend(frameon=False)
        return figure

    return Shown(
        f"In the last of {depth} layers the gradient of post-norm is {last['post-norm'] / last['pre-norm']:.1f} times "
        f"that of pre-norm.",
        [
            Table(
                "norm of the gradient",
                ("layer", *gradients),
                [[i + 1, *map(in_table, row)] for i, row in enumerate(zip(*gradients.values()))],
            )
        ],
        draw,
    )


def in_table(gradient: float) -> float | str:
    return gradient if math.isfinite(gradient) else "overflow"


def measure(place: tuple[str, ...], ids: torch.Tensor, depth: int, width: int, seed: int) -> list[float]:
    """Return the norm of the gradient of each layer's second matrix."""
    changes: dict[str, Any] = {"decoder.norm": LayerNorm() if "pre_norm" in place else None}
    for step in ("attention", "feedforward"):
        for slot in ("pre_norm", "post_norm", "out_norm"):
            changes[f"decoder.layers.{step}.{slot}"] = LayerNorm() if slot in place else None
    changes |= {"init": {"*": af.parts.Normal(std=width**-0.5)}, "embedding.scale": width**0.5}
    model = af.build(decoder(256, width=width, depth=depth, heads=4, changes=changes), seed=seed)
    model.double()  # without norms, 24 layers overflow in fp32
    F.cross_entropy(model(input_ids=ids).logits[0, :-1], ids[0, 1:]).backward()
    named: dict[str, Any] = dict(model.named_parameters())
    return [float(named[f"decoder.layers.{i}.feedforward.op.down.weight"].grad.norm()) for i in range(depth)]
