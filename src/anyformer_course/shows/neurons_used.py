"""Conditional computation: most neurons of a feed-forward layer are 0 for most words, but all are computed.

A small decoder with ReLU learns a text. For each word we count the neurons above 0, and how much the loss changes if
only the largest ones are kept.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.look import figures
from anyformer.specs.field_types import Count
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._small import decoder

TEXT = "the detective investigated the murder . the cat sat on the mat . the dog chased the cat ."
LAYER = "decoder.layers.1.feedforward.op"


def example(text: str = TEXT, *, steps: int = 60, width: Count = 32, seed: int = 0) -> Shown:
    """Train a decoder of two layers on the letters of `text`, then count active neurons in its second layer."""
    data = list(text.encode()[:96])
    if len(data) < 8 or not 0 <= steps <= 200:
        raise ValueError("write at least eight letters; steps must be from 0 to 200")
    ids = torch.tensor([data])
    changes = {"decoder.layers.feedforward.op.activation": "relu"}
    model: Any = af.build(decoder(256, width=width, changes=changes), seed=seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        loss = loss_of(model(input_ids=ids).logits, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        run = af.trace(model, keep=f"{LAYER}.up", input_ids=ids)
        active = run[f"{LAYER}.up"][0] > 0  # (T, 4 D)
        total = active.shape[1]
        kept = []
        for share in (1.0, 0.25, 0.125, 0.0625):
            number = max(int(share * total), 1)
            cut = af.trace(model, change={f"{LAYER}.up": functools.partial(largest, number=number)}, input_ids=ids)
            kept.append([number, 100 * share, float(loss_of(cut.output.logits, ids))])
    letters = [chr(byte) if 33 <= byte < 127 else "_" for byte in data]
    per_token = active.sum(1)

    def draw() -> Any:
        figure, axes = figures.new(1, 1, 9, 3.4)
        axes[0, 0].imshow(active[:40].T.numpy(), aspect="auto", cmap="Blues", interpolation="nearest")
        axes[0, 0].set_xticks(range(min(40, len(letters))), letters[:40], fontsize=7)
        axes[0, 0].set(ylabel="neuron", title="neurons above 0, for each letter")
        return figure

    return Shown(
        f"A letter uses {float(per_token.float().mean()):.0f} of {total} neurons on average; with only the "
        f"{kept[2][0]} largest the loss is {kept[2][2]:.3f} instead of {kept[0][2]:.3f}.",
        [
            Table("neurons kept per letter", ("neurons", "percent", "loss"), kept),
            Table(
                "active neurons", ("letter", "above 0", "percent"),
                [[letters[i], int(n), 100 * float(n) / total] for i, n in enumerate(per_token[:12])],
            ),
        ],
        draw,
    )  # fmt: skip


def loss_of(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits[0, :-1], ids[0, 1:])


def largest(x: torch.Tensor, address: str, number: int) -> torch.Tensor:
    """Keep the `number` largest inputs of ReLU per letter; set the others to 0."""
    least = x.topk(number, dim=-1).values[..., -1:]
    return x.where(x >= least, 0.0)
