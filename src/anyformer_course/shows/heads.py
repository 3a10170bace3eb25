"""Several heads: each head has its own small q, k and v, and attends in its own way.

The width D is divided among the heads, so the number of parameters and of operations does not depend on the number of
heads. The results of the heads are concatenated and projected.
"""

from __future__ import annotations

import math
from typing import Any

import torch

import anyformer as af
from anyformer.look.figures import heat_maps
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._small import context, module
from anyformer_course.table import tiny
from anyformer_course.words import vectors


def example(text: str = "the cat sat on the mat", *, heads: int = 4, width: int = 16, seed: int = 0) -> Shown:
    """Compute the weights of each head of one layer, and the shapes on the way to its result."""
    if heads < 1 or width % heads:
        raise ValueError(f"heads is {heads}; it must divide width {width}")
    words, x = vectors(text, width, seed)
    T, K = len(words), width // heads
    layer: Any = module(af.parts.Attention(num_heads=heads), width, seed, std=1.5 / math.sqrt(width))
    with torch.no_grad():
        q, k, v = (each(x).view(T, heads, K).transpose(0, 1) for each in (layer.q, layer.k, layer.v))  # (H, T, K)
        weights = (q @ k.transpose(1, 2) / math.sqrt(K)).softmax(-1)  # (H, T, T)
        joined = (weights @ v).transpose(0, 1).reshape(T, width)
        result = layer.o(joined)
        error = float((result - layer(x[None], context(T))[0]).abs().max())
    parameters = sum(each.numel() for each in layer.parameters())
    most = weights.max(-1)
    shapes = [
        ["x", f"{T} x {width}"], ["q, k, v of each head", f"{T} x {K}"], ["weights of each head", f"{T} x {T}"],
        ["result of each head", f"{T} x {K}"], ["concatenated", f"{T} x {width}"], ["after W_o", f"{T} x {width}"],
    ]  # fmt: skip

    def draw() -> Any:
        return heat_maps(list(weights), [f"head {h}" for h in range(heads)], "weights of each head", words, (0, 1))

    return Shown(
        f"{amount(heads, 'head')} of width {K} and the output matrix have {parameters:,} parameters"
        f"; by hand and by anyformer the results differ by at most {tiny(error)}.",
        [
            Table(
                "the word that each word attends to most, and its weight",
                ("head", *words),
                [
                    [h, *(f"{words[int(most.indices[h, i])]} {float(most.values[h, i]):.2f}" for i in range(T))]
                    for h in range(heads)
                ],
            ),
            Table("shapes", ("tensor", "shape"), shapes),
            Table("one layer", ("heads", "width of a head", "parameters"), [[heads, K, parameters]]),
        ],
        draw,
    )
