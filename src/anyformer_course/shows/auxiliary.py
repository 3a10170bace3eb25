"""GPT's fine-tuning loss L3 = L2 + lambda L1: the task, and language modelling of the same texts.

A pretrained small GPT learns to tell spam from other mail, with several values of lambda.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.look.figures import new
from anyformer.specs.messages import amount, quote
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._trained import STORIES, next_word_loss, pad, train
from anyformer_course.shows.tuning import MAIL, SPAM
from anyformer_course.words import read_number


def example(weights: str = "0 0.5", *, steps: int = 25, lr: float = 3e-3, seed: int = 0) -> Shown:
    """Tune once for each lambda in `weights`; compare the task's loss L2 with the language model's loss -L1."""
    try:
        factors = [read_number(each) for each in weights.split()]
    except ValueError:
        raise ValueError(f"{quote(weights)}: write numbers, for example '0 0.5'") from None
    if not factors:
        raise ValueError("write at least one lambda, for example '0 0.5'")
    if min(factors) < 0:
        raise ValueError("lambda must be 0 or more")
    small = train("gpt")
    rows = [[1, *small.ids(line), 3] for line in SPAM + MAIL]  # <start> ... <extract>
    ids, real = pad(rows)
    real = real & (ids != 3)  # words, not <extract>
    ends = torch.tensor([len(row) - 1 for row in rows])
    labels = torch.tensor([0] * len(SPAM) + [1] * len(MAIL))
    stories, is_story = pad([[1, *small.ids(line), 0] for line in sorted({*STORIES.splitlines()})])
    ones = torch.ones(len(ids), 1)

    def losses(model: Any, head: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        run = af.trace(model, keep="decoder.normed", input_ids=ids)
        task = F.cross_entropy(run["decoder.normed"][torch.arange(len(ids)), ends] @ head.T, labels)
        return task, next_word_loss(model, ids, real, ones)

    table, curves = [], {}
    for factor in factors:
        model = copy.deepcopy(small.model)
        draws = torch.Generator().manual_seed(seed)
        head = (torch.randn(2, model.spec.width, generator=draws) * 0.02).requires_grad_()
        optimizer = torch.optim.AdamW([head, *model.parameters()], lr=lr, weight_decay=0.0)
        curves[factor] = []
        for _ in range(steps):
            task, language = losses(model, head)
            curves[factor].append(task.item())
            optimizer.zero_grad()
            (task + factor * language).backward()
            optimizer.step()
        with torch.no_grad():
            task, language = losses(model, head)
            other = next_word_loss(model, stories, is_story, torch.ones(len(stories), 1))
        table.append([factor, task.item(), language.item(), other.item(), (task + factor * language).item()])

    def draw() -> Any:
        figure, axes = new(2, 1, 8, 3)
        for factor, curve in curves.items():
            axes[0, 0].plot(curve, label=f"lambda {factor:g}")
        axes[0, 0].set_title("L2: loss of the task, by step", fontsize=9)
        axes[0, 0].legend(fontsize=8)
        axes[0, 1].bar([f"{row[0]:g}" for row in table], [row[2] for row in table])
        axes[0, 1].set_title("L1: loss of language modelling, after tuning", fontsize=9)
        axes[0, 1].set_xlabel("lambda")
        return figure

    first, last = table[0], table[-1]
    columns = ("lambda", "L2 (task)", "L1 (these mails)", "L1 (all stories)", "L3 = L2 + lambda L1")
    return Shown(
        f"lambda {first[0]:g}: task {first[1]:.3f}, language {first[2]:.2f}; "
        f"lambda {last[0]:g}: task {last[1]:.3f}, language {last[2]:.2f}",
        [Table(f"losses after {amount(steps, 'step')}, as negative log-likelihoods", columns, table)],
        draw,
    )
