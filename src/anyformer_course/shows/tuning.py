"""Fine-tuning: a pretrained model and a new classifier learn a task from a few labelled texts.

A small BERT learns masked words of unlabelled sentences, then tells spam from other mail with a classifier on [CLS]. A
small GPT learns the next word, and its classifier reads the last token [Radford et al. 2018].
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
import torch.nn.functional as F

from anyformer.look.figures import new
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._trained import STORIES, SmallModel, masked_word_loss, next_word_loss, pad, train

SPAM = [f"win a free {thing} {when} ." for thing in ("prize", "phone", "holiday") for when in ("now", "today")]
STAGES = {"bert": "masked words", "gpt": "the next word"}
EVERYTHING, CLASSIFIER = "all weights", "only the classifier"
ENDS = {"bert": 2, "gpt": 3}  # [SEP] and <extract>
MAIL = [f"the {what} is {when} ." for what in ("meeting", "lunch", "class") for when in ("at noon", "on monday")]


def example(
    text: str = "win the lunch now .", *, model: Literal["bert", "gpt"] = "bert", frozen: bool = False,
    labelled: int = 2, steps: int = 25, lr: float = 1e-3,
) -> Shown:  # fmt: skip
    """Learn from `labelled` mails of each kind, test on the others. With `frozen`, only the classifier is trained."""
    if not 1 <= steps <= 200:
        raise ValueError(f"steps is {steps}; it must be from 1 to 200")
    if not 1 <= labelled <= 5:
        raise ValueError(f"labelled is {labelled}; 1 to 5 of the 6 mails of each kind can be used")
    small = train(model)
    ids, _ = pad([[1, *small.ids(line), ENDS[model]] for line in SPAM + MAIL])
    labels = torch.tensor([0] * len(SPAM) + [1] * len(MAIL))
    used = torch.tensor([i % len(SPAM) < labelled for i in range(len(labels))])
    ways = {
        way: tune(small, ids[used], labels[used], frozen=way == CLASSIFIER, steps=steps, lr=lr)
        for way in (EVERYTHING, CLASSIFIER)
    }
    tuned, head, losses = ways[CLASSIFIER if frozen else EVERYTHING]
    shares = {way: correct(model, head, ids, labels)[~used].mean() for way, (model, head, _) in ways.items()}
    right = correct(tuned, head, ids, labels)
    with torch.no_grad():
        mine = torch.tensor([[1, *small.ids(text), ENDS[model]]])
        chance = float(head(read_state(tuned, mine)).softmax(-1)[0, 0])
    stack = "encoder" if model == "bert" else "decoder"
    groups = {"embedding": "embedding.", "layer 1": f"{stack}.layers.0.", "layer 2": f"{stack}.layers.1."}
    moved: list[list[Any]] = [[group, *movement(tuned, small.model, prefix)] for group, prefix in groups.items()]
    moved.append(["new classifier", sum(p.numel() for p in head.parameters()), None])

    def draw() -> Any:
        figure, axes = new(2, 1, 8, 3)
        for way, (_, _, values) in ways.items():
            axes[0, 0].plot(values, label=way)
        axes[0, 0].legend(fontsize=8)
        axes[0, 0].set_title("loss by step", fontsize=9)
        drawn = axes[0, 1].bar([row[0] for row in moved[:-1]], [100 * row[2] for row in moved[:-1]])
        axes[0, 1].bar_label(drawn, fmt="%.3g")
        axes[0, 1].set_ylim(0, max(1, 115 * max(row[2] for row in moved[:-1])))  # frozen weights do not move
        axes[0, 1].set_title("how far the pretrained weights moved, in %", fontsize=9)
        return figure

    seen, unseen = float(right[used].mean()), float(right[~used].mean())
    return Shown(
        f"{unseen:.0%} of the other mails are right after {amount(steps, 'step')} on {int(used.sum())} labelled mails; "
        f"{text!r} is spam with probability {chance:.2f}",
        [
            Table("two stages", ("stage", "texts", "learns", "loss"), [
                ["1. pretraining", len(set(STORIES.splitlines())), STAGES[model], pretraining_loss(small, model)],
                ["2. fine-tuning", int(used.sum()), "spam or not", losses[-1]],
            ]),
            Table("results", ("mails", "number", "share right"), [
                ["labelled", int(used.sum()), seen], ["others", int((~used).sum()), unseen]
            ]),
            Table("what is trained", ("trained", "loss", "share of other mails right"), [
                [way, ways[way][2][-1], float(share)] for way, share in shares.items()
            ]),
            Table("relative change of the weights", ("part", "parameters", "change"), moved),
            Table("loss", ("step", "loss"), [[i, losses[i]] for i in sorted({0, steps // 2, steps - 1})]),
        ],
        draw,
    )  # fmt: skip


def pretraining_loss(small: SmallModel, kind: str) -> float:
    """Return the loss of the pretrained model on the stories that it learned from."""
    rows = [[1, *small.ids(line), 0 if kind == "gpt" else 2] for line in sorted(set(STORIES.splitlines()))]
    ids, real = pad(rows)
    with torch.no_grad():
        if kind == "gpt":
            return float(next_word_loss(small.model, ids, real, torch.ones(len(rows), 1)))
        return float(masked_word_loss(small.model, ids, torch.Generator().manual_seed(0)))


def movement(model: Any, pretrained: Any, prefix: str) -> tuple[int, float]:
    """Return the number of weights under `prefix`, and the length of their change over their length."""
    start = {name: value.detach() for name, value in pretrained.named_parameters() if name.startswith(prefix)}
    change = sum(float((model.get_parameter(name).detach() - value).square().sum()) for name, value in start.items())
    length = sum(float(value.square().sum()) for value in start.values())
    return sum(value.numel() for value in start.values()), (change / length) ** 0.5


def tune(
    small: SmallModel, ids: torch.Tensor, labels: torch.Tensor, *, frozen: bool, steps: int, lr: float
) -> tuple[Any, torch.nn.Linear, list[float]]:
    """Train a classifier, and unless `frozen` a copy of the model; return both and the losses."""
    tuned = copy.deepcopy(small.model)
    with torch.random.fork_rng(devices=()):
        head = torch.nn.Linear(tuned.spec.width, 2)
    with torch.no_grad():
        head.weight.copy_(torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(0)) * 0.02)
        head.bias.zero_()
    optimizer = torch.optim.AdamW([*head.parameters(), *(() if frozen else tuned.parameters())], lr, weight_decay=0.0)
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(head(read_state(tuned, ids)), labels)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return tuned, head, losses


def correct(model: Any, head: torch.nn.Linear, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return 1 for each text (B) that gets its label, 0 for the others."""
    with torch.no_grad():
        return (head(read_state(model, ids)).argmax(-1) == labels).float()


def read_state(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the last state (B, D) of [CLS] (BERT) or of the last token (GPT)."""
    mask = (ids != 0).long()
    states = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[-1]
    if not model.spec.left_to_right:
        return states[:, 0]
    return states[torch.arange(len(ids)), mask.sum(1) - 1]
