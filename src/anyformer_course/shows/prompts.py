"""Prompts with shots: a small GPT answers a task that only the examples in its prompt define.

Every text has a secret shift: the second letter of a pair is the first, moved by this many letters. The model learns
from many texts with different shifts, and no weight changes while it reads your pairs [Brown et al. 2020].
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import anyformer as af
from anyformer.look.figures import new
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._small import decoder

LETTERS, PAIRS = "abcd", 6


def example(pairs: str = "ac bd ca", *, ask: str = "d", steps: int = 130, seed: int = 0) -> Shown:
    """Answer the letter `ask` after zero, one, two, ... of the `pairs`, which share one shift."""
    shots = pairs.split()
    letters = [*"".join(shots), *ask]
    if not shots or len(shots) >= PAIRS or any(len(pair) != 2 for pair in shots) or len(ask) != 1:
        raise ValueError(f"give one to {PAIRS - 1} pairs of letters, such as 'ac bd', and one letter to ask for")
    if unknown := next((letter for letter in letters if letter not in LETTERS), None):
        raise ValueError(f"the letter {unknown!r} is not one of {LETTERS}")
    model = train(steps, seed)
    rows, probabilities = [], []
    for number in range(len(shots) + 1):
        ids = torch.tensor([[LETTERS.index(letter) for letter in "".join(shots[:number]) + ask]])
        with torch.no_grad():
            p = model(input_ids=ids).logits[0, -1, : len(LETTERS)].softmax(-1)
        probabilities.append(p)
        rows.append([number, " ".join([*shots[:number], f"{ask}?"]), LETTERS[int(p.argmax())], *p.tolist()])
    ids = texts(512, torch.Generator().manual_seed(seed + 1))
    with torch.no_grad():
        right = (model(input_ids=ids).logits[:, :-1].argmax(-1) == ids[:, 1:])[:, 0::2].float().mean(0)

    def draw() -> Any:
        figure, axes = new(2, 1, 9, 3.2)
        axes[0, 0].imshow(torch.stack(probabilities).numpy(), cmap="Blues", vmin=0, vmax=1)
        axes[0, 0].set_yticks(range(len(rows)), [row[1] for row in rows], fontsize=9)
        axes[0, 0].set_xticks(range(len(LETTERS)), list(LETTERS))
        axes[0, 0].set_title("probability of the answer", fontsize=10)
        axes[0, 1].plot([100 * each for each in right.tolist()], "o-")
        axes[0, 1].axhline(100 / (len(LETTERS) - 1), color="gray", linestyle=":", label="chance")
        axes[0, 1].legend(frameon=False, fontsize=8, loc="center right")
        axes[0, 1].set(xlabel="shots", ylim=(0, 103))
        axes[0, 1].set_title("right answers of 512 random texts, %", fontsize=10)
        return figure

    return Shown(
        f"Without examples the model answers {rows[0][2]!r} ({float(probabilities[0].max()):.2f}), after "
        f"{amount(len(shots), 'example')} {rows[-1][2]!r} ({float(probabilities[-1].max()):.2f}). On random texts "
        f"{100 * float(right[0]):.0f} % of its "
        f"answers are right without examples and {100 * float(right[-1]):.0f} % after {PAIRS - 1}.",
        [
            Table("your prompt", ("shots", "prompt", "answer", *(f"p({letter})" for letter in LETTERS)), rows),
            Table("512 random texts", ("shots", "right answers"), [[i, each] for i, each in enumerate(right.tolist())]),
        ],
        draw,
    )


def texts(number: int, draws: torch.Generator) -> Tensor:
    """Return texts of pairs (B, 2 PAIRS), each text with its own shift from 1 to 3."""
    first = torch.randint(0, len(LETTERS), (number, PAIRS), generator=draws)
    shift = torch.randint(1, len(LETTERS), (number, 1), generator=draws)
    return torch.stack((first, (first + shift) % len(LETTERS)), -1).flatten(1)


@functools.cache
def train(steps: int, seed: int) -> Any:
    """Train a GPT of two layers on new texts in every step."""
    if not 1 <= steps <= 1000:
        raise ValueError(f"steps is {steps}; it must be from 1 to 1000")
    draws = torch.Generator().manual_seed(seed)
    model: Any = af.build(decoder(len(LETTERS), width=32, heads=4), seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), fused=True)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1.5e-2 * min(1, (step + 1) / 30) * (1 - step / steps)
        ids = texts(32, draws)
        scores = model(input_ids=ids).logits[:, :-1][:, 0::2]  # second letters can be predicted, first ones cannot
        loss = F.cross_entropy(scores.flatten(0, 1), ids[:, 1:][:, 0::2].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()
