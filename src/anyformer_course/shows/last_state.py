"""A decoder as a classifier: a new layer reads the hidden state of the last word, and its gradient reaches all layers.

A small GPT, trained as a language model, gets a classifier with random weights: y = A h_T + b. The state of an earlier
word has not seen the words after it, so only the last state knows the whole text.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from anyformer.look.figures import new
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._trained import STORIES, train


def example(text: str = "win a free prize now .", *, read: int = -1, seed: int = 0, corpus: str = STORIES) -> Shown:
    """Classify `text` from the state of the word number `read` (-1: the last word), into two classes."""
    small = train("gpt", corpus)
    words, ids = small.words(text), torch.tensor([small.ids(text)])
    if not -len(words) <= read < len(words):
        raise ValueError(f"read is {read}; the text has the words 0 to {len(words) - 1}")
    place = read % len(words)
    A = (torch.randn(2, 48, generator=torch.Generator().manual_seed(seed)) / 7).requires_grad_()  # 7: about sqrt(48)
    b = torch.zeros(2, requires_grad=True)
    probability = classify(small.model, ids, place, A, b).softmax(-1).detach()
    rows = []
    for i, word in enumerate(words):
        changed = ids.clone()
        changed[0, i] = small.ids("the")[0] if word != "the" else small.ids("a")[0]
        with torch.no_grad():
            moved = classify(small.model, changed, place, A, b).softmax(-1)
        rows.append([word, "yes" if i == place else "", float((moved - probability).abs().max())])
    small.model.zero_grad()
    F.cross_entropy(classify(small.model, ids, place, A, b), torch.tensor([0])).backward()
    sums: dict[str, list[float]] = {}
    for name, parameter in small.model.named_parameters():
        part = ".".join(name.split(".")[: 3 if ".layers." in name else 2 if name.startswith("decoder") else 1])
        if parameter.grad is not None and not name.startswith("head"):
            sums.setdefault(part, []).append(float(parameter.grad.norm()) ** 2)
    gradients = [[part, sum(each) ** 0.5] for part, each in sums.items()] + [["new layer A", float(A.grad.norm())]]
    small.model.zero_grad()
    seen = [row[0] for row in rows if row[2] > 1e-6]

    def draw() -> Any:
        figure, axes = new(2, 1, 9, 2.8)
        axes[0, 0].bar(range(len(words)), [row[2] for row in rows], color=["C1" if row[1] else "C0" for row in rows])
        axes[0, 0].set_xticks(range(len(words)), words)
        axes[0, 0].set_title("change of the probability if this word is replaced", fontsize=10)
        axes[0, 1].barh([part for part, _ in gradients], [size for _, size in gradients])
        axes[0, 1].invert_yaxis()
        axes[0, 1].set_title("norm of the gradient", fontsize=10)
        return figure

    return Shown(
        f"The state of {words[place]!r} depends on {len(seen)} of {amount(len(words), 'word')}. The new layer has "
        f"{A.numel() + b.numel()} parameters; its loss has a gradient in all {len(gradients) - 1} pretrained parts.",
        [Table("words, each replaced by 'the'", ("word", "read", "change of the probability if replaced"), rows),
         Table("gradient of the classifier's loss", ("part", "norm"), gradients)],
        draw,
    )  # fmt: skip


def classify(model: Any, ids: torch.Tensor, place: int, A: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the scores (1, 2) of A h + b, with the hidden state h of the word at `place`."""
    states = model(input_ids=ids, output_hidden_states=True).hidden_states[-1]
    return F.linear(states[:, place], A, b)
