"""A router's choices: every word goes to a few experts, whose results are added with the router's weights.

All experts together have many parameters, but a word uses only those of its experts [Shazeer et al. 2017]. The router
and the experts have random weights here.
"""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer.look.figures import heat_maps
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._small import context, module
from anyformer_course.words import vectors

WIDTH, HIDDEN = 16, 64


def example(
    text: str = "the cat sat on the mat and the dog barked", *, experts: int = 8, top: int = 2, seed: int = 0
) -> Shown:
    """Send every word to `top` of `experts` experts."""
    if not 1 <= top <= experts <= 32:
        raise ValueError(f"top is {top} and experts is {experts}; give 1 <= top <= experts <= 32")
    words, x = vectors(text, WIDTH, seed)
    part = af.parts.MoE(num_experts=experts, router=af.parts.TopK(top_k=top), expert=af.parts.MLP(width=HIDDEN))
    layer: Any = module(part, WIDTH, seed, std=0.3)
    with torch.no_grad():
        chosen = layer.router(x[None], context(len(words)))
        probability = chosen.logits.view(len(words), experts).softmax(-1)
        weights = torch.zeros(len(words), experts).scatter(1, chosen.experts.view(len(words), top),
                                                            chosen.weights.view(len(words), top))  # fmt: skip
        one = expert_size(layer, experts)
    total = sum(parameter.numel() for parameter in layer.parameters())
    active = total - (experts - top) * one
    load = (weights > 0).sum(0).tolist()

    def draw() -> Any:
        figure = heat_maps([probability, weights], ["probabilities of the router", f"weights of the best {top}"], "")
        figure.set_size_inches(8, 0.9 + 0.3 * len(words))
        for axis in figure.axes:
            axis.set_yticks(range(len(words)), words, fontsize=8)
            axis.set_xticks(range(experts), [f"{e}" for e in range(experts)], fontsize=8)
            axis.set_xlabel("expert", fontsize=8)
        return figure

    rows = [
        [word, *(", ".join(f"{e}: {each[i, e]:.2f}" for e in weights[i].argsort(descending=True)[:top].tolist())
                 for each in (probability, weights))]
        for i, word in enumerate(words)
    ]  # fmt: skip
    return Shown(
        f"The layer has {total:,} parameters, and a word uses {active:,} of them ({100 * active / total:.0f} %). The "
        f"router is not trained: its busiest expert gets {max(load)} of {amount(len(words), 'word')}.",
        [
            Table("choices", ("word", f"best {amount(top, 'expert')}: probability", "weight (scaled to sum 1)"), rows),
            Table("load", ("expert", "words"), [[e, number] for e, number in enumerate(load)]),
            Table("parameters", ("experts", "parameters", "used by a word"),
                  [[number, total + (number - experts) * (one + WIDTH), active + (number - experts) * WIDTH]
                   for number in (top, experts, 4 * experts)]),
        ],
        draw,
    )  # fmt: skip


def expert_size(layer: Any, experts: int) -> int:
    """Return the parameters of one expert: all but the router's, divided by the number of experts."""
    router = sum(parameter.numel() for parameter in layer.router.parameters())
    return (sum(parameter.numel() for parameter in layer.parameters()) - router) // experts
