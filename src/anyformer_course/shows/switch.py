"""Switch: a router sends each word to one expert, up to the expert's capacity, and learns through its probability.

The result of an expert is multiplied by the router's probability. Without this factor, the choice has no gradient
[Fedus et al. 2021].
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

import anyformer as af
from anyformer.look.figures import heat_maps
from anyformer.specs.messages import amount
from anyformer.specs.part import Site
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._small import context
from anyformer_course.words import vectors


def example(
    text: str = "the cat sat on the mat and the dog sat down",
    *,
    experts: int = 4,
    capacity: float = 1.25,
    seed: int = 0,
) -> Shown:
    """Route the words to `experts` experts; each takes at most `capacity` times its even share of the words."""
    if not 1 <= experts <= 16 or not 0 < capacity <= 16:
        raise ValueError("experts must be from 1 to 16, and capacity above 0 and at most 16")
    words, x = vectors(text, 8, seed)
    T, room = len(words), math.ceil(capacity * len(words) / experts)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        router: Any = af.parts.Switch(capacity=room).make(Site(width=8, address="router"), experts)
        for parameter in router.parameters():
            nn.init.normal_(parameter, std=0.7)
        layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(experts))
    chosen = router(x[None], context(T))
    probability = chosen.logits.view(T, experts).softmax(-1)
    best = probability.max(-1)
    routed = chosen.experts.view(T).tolist()  # `experts` for a dropped word
    gradients = []
    for weighted in (True, False):
        router.zero_grad()
        parts = [
            layers[e](x[i]) * (best.values[i] if weighted else 1.0) if e < experts else torch.zeros(8)
            for i, e in enumerate(routed)
        ]
        torch.stack(parts).square().sum().backward(retain_graph=True)
        gradients.append(sum(float(p.grad.norm()) for p in router.parameters() if p.grad is not None))
    dropped = [word for word, e in zip(words, routed, strict=True) if e == experts]

    def draw() -> Any:
        sent = torch.zeros(experts + 1, T)
        sent[routed, range(T)] = 1.0
        titles = ["probabilities", "sent to (last: dropped)"]
        figure = heat_maps([probability.detach(), sent.T], titles, f"room for {room} words per expert")
        figure.set_size_inches(7, 4)
        for axis in figure.axes:
            axis.set_yticks(range(T), words, fontsize=8)
            axis.set_xticks(range(experts + (axis is figure.axes[1])))
        return figure

    rows = [
        [word, *row, int(best.indices[i]), float(best.values[i].detach()), "dropped" if routed[i] == experts else "yes"]
        for i, (word, row) in enumerate(zip(words, probability.tolist(), strict=True))
    ]
    wanted = best.indices.tolist()
    loads = [[f"expert {e}", wanted.count(e), routed.count(e), room] for e in range(experts)]
    return Shown(
        f"{len(dropped)} of {T} words {'finds its' if len(dropped) == 1 else 'find their'} expert full (room for "
        f"{amount(room, 'word')} each). The gradient of the router "
        f"is {gradients[0]:.2f} with the factor p, and {gradients[1]:.2f} without it.",
        [
            Table("words", ("word", *(f"p(expert {e})" for e in range(experts)), "best", "p", "processed"), rows),
            Table("experts", ("expert", "words that want it", "words that it gets", "capacity"), loads),
            Table("gradient of the router", ("the result is", "gradient"), list(zip(("p E(x)", "E(x)"), gradients))),
        ],
        draw,
    )
