"""Longer texts than in training: the loss of four kinds of positions, on texts of four times the training length.

Texts follow a rule: a letter depends on the two letters before it, and one letter in ten is random. Small decoders of
one layer learn it in a second each. Vectors of later positions exist, but training never used them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import anyformer as af
from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._small import decoder

LETTERS, LENGTH, TIMES = 6, 16, 4
SCHEMES: dict[str, dict[str, Any]] = {
    "learned": {"embedding.position": af.parts.Learned(length=TIMES * LENGTH)},
    "sinusoidal": {"embedding.position": af.parts.Sinusoidal(length=TIMES * LENGTH)},
    "rotary": {"decoder.layers.attention.op.position": af.parts.Rope()},
    "ALiBi": {"decoder.layers.attention.op.position": af.parts.Alibi(num_heads=2)},
}


def example(*, steps: int = 100, seed: int = 0) -> Shown:
    """Train each model for `steps` steps on texts of 16 letters, and measure its loss on texts of 64 letters."""
    if not 0 <= steps <= 300:
        raise ValueError(f"steps is {steps}; it must be from 0 to 300")
    draws = torch.Generator().manual_seed(seed)
    rule = torch.randint(LETTERS, (LETTERS, LETTERS), generator=draws)
    batches = [texts(32, LENGTH, rule, draws) for _ in range(steps)]
    ids = texts(256, TIMES * LENGTH, rule, draws)
    losses = {scheme: losses_by_position(scheme, batches, ids, seed) for scheme in SCHEMES}
    quarters = {scheme: [float(part.mean()) for part in each.split(LENGTH)] for scheme, each in losses.items()}
    guess = math.log(LETTERS)
    worst = max(quarters, key=lambda scheme: quarters[scheme][-1] - quarters[scheme][0])
    best = min(quarters, key=lambda scheme: quarters[scheme][-1] - quarters[scheme][0])

    def draw() -> Any:
        figure, axes = new(1, 1, 8, 4)
        for scheme, each in losses.items():
            axes[0, 0].plot(range(1, len(each) + 1), each.tolist(), label=scheme)
        axes[0, 0].axvline(LENGTH, color="black", linestyle=":", lw=1)
        axes[0, 0].axhline(guess, color="gray", linestyle=":", lw=1)
        axes[0, 0].set(xlabel=f"position (training: 1 to {LENGTH})", ylabel="loss; dotted: guessing")
        axes[0, 0].legend()
        return figure

    places = [f"{1 + i * LENGTH} to {(i + 1) * LENGTH}" for i in range(TIMES)]
    return Shown(
        f"from positions {places[0]} (training) to {places[-1]} the loss rises most with {worst} positions, by "
        f"{quarters[worst][-1] - quarters[worst][0]:.2f}, and least with {best}, by "
        f"{quarters[best][-1] - quarters[best][0]:.2f}; guessing has {guess:.2f}",
        [Table(f"loss by position, after {steps} steps on texts of {LENGTH} letters", ("positions", *places),
               [[scheme, *values] for scheme, values in quarters.items()])],
        draw,
    )  # fmt: skip


def texts(count: int, length: int, rule: Tensor, draws: torch.Generator) -> Tensor:
    """Return ids (B, T): a letter follows from the two letters before it, or is random (one in ten)."""
    ids = torch.randint(LETTERS, (count, length), generator=draws)
    free = torch.rand(count, length, generator=draws) < 0.1
    for t in range(2, length):
        ids[:, t] = torch.where(free[:, t], ids[:, t], rule[ids[:, t - 2], ids[:, t - 1]])
    return ids


def losses_by_position(scheme: str, batches: list[Tensor], ids: Tensor, seed: int) -> Tensor:
    """Train a decoder with the positions `scheme`; return its loss at every position of `ids` (T)."""
    changes = {"embedding.position": None, **SCHEMES[scheme]}
    model = af.build(decoder(LETTERS + 1, depth=1, changes=changes), seed=seed)  # the last id starts every text
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, fused=True)
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (1 - step / len(batches))
        loss = next_letter_losses(model, batch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return next_letter_losses(model.eval(), ids).mean(0)


def next_letter_losses(model: Any, ids: Tensor) -> Tensor:
    """Return the loss of every letter (B, T)."""
    start = torch.full_like(ids[:, :1], LETTERS)
    logits = model(input_ids=torch.cat((start, ids[:, :-1]), 1)).logits  # (B, T, V)
    return F.cross_entropy(logits.transpose(1, 2), ids, reduction="none")
