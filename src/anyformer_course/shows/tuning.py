"""What fine-tuning adds and what it changes: new parameters per task, and how far each part of a model moves.

A small BERT learns masked words, then learns to tell spam from other mail with a new classifier on [CLS].
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._trained import train

SPAM = [f"win a free {thing} {when} ." for thing in ("prize", "phone", "holiday") for when in ("now", "today")]
MAIL = [f"the {what} is {when} ." for what in ("meeting", "lunch", "class") for when in ("at noon", "on monday")]


def example(text: str = "win the lunch now .", *, frozen: bool = False, steps: int = 25, lr: float = 3e-3) -> Shown:
    """Tune on 12 mails and classify `text`. With `frozen`, only the new classifier is trained."""
    small = train("bert")
    base = copy.deepcopy(small.model)
    width = base.spec.width
    head = torch.nn.Linear(width, 2)
    with torch.no_grad():
        head.weight.copy_(torch.randn(2, width, generator=torch.Generator().manual_seed(0)) * 0.02)
        head.bias.zero_()
    before = {name: value.detach().clone() for name, value in base.named_parameters()}
    rows = [[1, *small.ids(line), 2] for line in SPAM + MAIL]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    labels = torch.tensor([0] * len(SPAM) + [1] * len(MAIL))
    trained = [*head.parameters(), *(() if frozen else base.parameters())]
    optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=0.0)
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(head(first_state(base, ids)), labels)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    groups = {"embedding": "embedding.", "layer 1": "encoder.layers.0.", "layer 2": "encoder.layers.1."}
    moved = []
    for group, prefix in groups.items():
        names = [name for name in before if name.startswith(prefix)]
        change = sum(float((base.get_parameter(n).detach() - before[n]).square().sum()) for n in names) ** 0.5
        length = sum(float(before[n].square().sum()) for n in names) ** 0.5
        moved.append([group, sum(before[n].numel() for n in names), change / length])
    with torch.no_grad():
        right = float((head(first_state(base, ids)).argmax(-1) == labels).float().mean())
        chance = float(head(first_state(base, torch.tensor([[1, *small.ids(text), 2]]))).softmax(-1)[0, 0])

    def draw() -> Any:
        figure, axes = new(2, 1, 8, 3)
        axes[0, 0].plot(losses)
        axes[0, 0].set_title("loss by step", fontsize=9)
        axes[0, 1].bar([row[0] for row in moved], [100 * row[2] for row in moved])
        axes[0, 1].set_title("how far the weights moved, in %", fontsize=9)
        return figure

    return Shown(
        f"{right:.0%} of the mails are right after {steps} steps; {text!r} is spam with probability {chance:.2f}; "
        f"the pretrained weights moved by {min(row[2] for row in moved):.1%} to {max(row[2] for row in moved):.1%}",
        [
            Table("new parameters on BERT base", ("task", "reads", "new parameters", "share"), added()),
            Table("relative change of the pretrained weights", ("part", "parameters", "change"), moved),
            Table("loss", ("step", "loss"), [[i, losses[i]] for i in (0, steps // 2, steps - 1)]),
        ],
        draw,
    )


def first_state(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the last state of [CLS] (B, D)."""
    mask = (ids != 0).long()
    return model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[-1][:, 0]


def added() -> list[list[Any]]:
    """Count what each task adds to BERT base and its pooler."""
    from anyformer.parts.head.classify import ClassifyHead, MultipleChoiceHead, PooledOutput
    from anyformer.parts.head.span import SpanHead
    from anyformer.parts.head.tag import TagHead

    spec = af.spec("bert-base").replace(ties=())
    pool = spec.head.pool
    bare = af.count(spec.replace(head=PooledOutput(pool=pool))).parameters
    body = bare - spec.width**2 - spec.width  # tasks on tokens do not use the pooler
    tasks = {
        "class of a text or pair (2 labels)": ("[CLS]", ClassifyHead(num_labels=2, pool=pool), bare),
        "one of several choices": ("[CLS] of each", MultipleChoiceHead(pool=pool), bare),
        "span of an answer": ("every token", SpanHead(), body),
        "tag of every token (9 tags)": ("every token", TagHead(num_labels=9), body),
    }
    counts = {
        task: (reads, af.count(spec.replace(head=head)).parameters - base)
        for task, (reads, head, base) in tasks.items()
    }
    return [[task, reads, number, number / bare] for task, (reads, number) in counts.items()]
