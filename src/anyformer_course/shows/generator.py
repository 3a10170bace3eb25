"""A pretrained decoder as a generator: it continues a text, and fine-tuning changes p(next word), with the same layers.

A small GPT learns stories. Then it learns a task whose answer is a text, here questions and answers in known words. The
output layer A h was pretrained with the rest, so nothing new is added [Radford et al. 2018].
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from anyformer.look.figures import new
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._trained import STORIES, SmallModel, next_word_loss, pad, train

# context <delim> answer: who did it?
TASK = (
    "the dog chased the ball . <delim> the dog", "the cat sat on the mat . <delim> the cat",
    "a bird sang in the tree . <delim> a bird", "the dog barked at the cat . <delim> the dog",
    "a bird flew over the river . <delim> a bird", "the dog slept in the sun . <delim> the dog",
)  # fmt: skip
LENGTH = 8  # words that are written at most


def example(
    text: str = "the dog ran to the river . <delim>", *, steps: int = 20, lines: str = "\n".join(TASK)
) -> Shown:
    """Continue `text` with the pretrained model, fine-tune it on `lines` for `steps` steps, and continue again."""
    if not 0 <= steps <= 200:
        raise ValueError(f"steps is {steps}; it must be from 0 to 200")
    small = train("gpt", STORIES)
    tuned = SmallModel(copy.deepcopy(small.model), small.tokens)
    rows = [[1, *small.ids(line), 0] for line in lines.splitlines() if line.strip()]
    ids, real = pad(rows)
    optimizer = torch.optim.AdamW(tuned.model.parameters(), 2e-3, weight_decay=0.0)
    losses = []
    for _ in range(steps):
        loss = next_word_loss(tuned.model, ids, real, torch.ones(len(rows), 1))
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        before, after = (
            float(next_word_loss(each.model, ids, real, torch.ones(len(rows), 1))) for each in (small, tuned)
        )
    losses.append(after)
    begin = " ".join(text.split()[:2])
    story = " ".join(word for word, _ in write(small, begin))
    written = {"pretrained": write(small, text), "fine-tuned": write(tuned, text)}
    A = small.model.head.out.weight
    size = sum(parameter.numel() for parameter in small.model.parameters())
    steps_of = [
        [i + 1, *(cell for name in written for cell in (written[name][i] if i < len(written[name]) else ("", None)))]
        for i in range(max(map(len, written.values())))
    ]

    def draw() -> Any:
        figure, axes = new(2, 1, 10, 3.2)
        axes[0, 0].plot(losses, "o-", markersize=3)
        axes[0, 0].set(xlabel="step", ylabel="loss per word", title="fine-tuning", ylim=(0, None))
        for name, words in written.items():
            axes[0, 1].plot(
                range(1, len(words) + 1),
                [p for _, p in words],
                "o-",
                label=f"{name}: {' '.join(word for word, _ in words)}",
            )
        axes[0, 1].set(xlabel="written word", ylabel="probability", ylim=(0, 1.3), title="p(next word)")
        axes[0, 1].locator_params(axis="x", integer=True)
        axes[0, 1].legend(frameon=False, fontsize=8, loc="upper right")
        return figure

    first, last = (" ".join(word for word, _ in words) for words in written.values())
    return Shown(
        f"The pretrained model continues {begin!r} with {story!r}. After {text!r} it writes {first!r}, and after "
        f"{amount(steps, 'step')} of fine-tuning {last!r}. The loss on the {amount(len(rows), 'line')} falls from "
        f"{before:.2f} to {after:.2f}.",
        [
            Table("as a generator, before fine-tuning", ("start", "continuation"), [[begin, story]]),
            Table(f"after {text!r}", ("word", "pretrained", "p", "fine-tuned", "p of it"), steps_of),
            Table("layers", ("what", "shape or number"), [
                ["h: last hidden state of a word", f"{A.shape[1]}"],
                ["A: output layer, pretrained", f"{A.shape[0]} x {A.shape[1]}"],
                ["new parameters for the task", "0"], ["parameters that are fine-tuned", f"{size:,}"],
            ]),
        ],
        draw,
    )  # fmt: skip


@torch.no_grad()
def write(small: SmallModel, text: str) -> list[tuple[str, float]]:
    """Return the words that the model writes after the text, always the most likely one, with their probabilities."""
    ids, written = [1, *small.ids(text)], []
    for _ in range(LENGTH):
        chances = small.model(input_ids=torch.tensor([ids])).logits[0, -1].softmax(-1)
        best = int(chances.argmax())
        written.append((small.tokens[best], float(chances[best])))
        ids.append(best)
        if best == 0:
            break
    return written
