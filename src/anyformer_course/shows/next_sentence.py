"""Next sentence prediction: pairs of sentences, half of them from the same text, half with a random second sentence.

A small BERT then learns to tell them apart from its last vector of [CLS]. Write your own text with one sentence per
line; an empty line begins a second text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.look.figures import new, plain
from anyformer.specs.field_types import Count, Fraction, Natural
from anyformer.specs.messages import amount, shorten
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._pieces import tokenizer
from anyformer_course.shows._trained import describe, pad

Pair = tuple[np.ndarray, np.ndarray, int]  # token ids of A and of B, and the label

TEXTS = "the dog dug a deep hole .\nhe found an old bone .\nhe ran to the river .\n\n" + (
    "she likes birds .\na bird sang in the tree .\nit flew over the river ."
)


def example(
    text: str = TEXTS, *, next_rate: Fraction = 0.5, pairs: Count = 6, draws: Count = 1000, steps: Natural = 60,
    seed: int = 0,
) -> Shown:  # fmt: skip
    """Draw pairs "[CLS] A [SEP] B [SEP]" and train on their labels. `next_rate` is the share of real successors."""
    from anyformer.objectives.sentences import FOLLOWS, MaskedAndNext, truncate_pair

    documents = [each for each in text.split("\n\n") if each.strip()]
    if len(documents) < 2:
        raise ValueError("random sentences need a second text; separate two texts with an empty line")
    pieces = tokenizer(*documents)
    objective = MaskedAndNext(length=64, short=0.0, next_rate=next_rate).ready(pieces)
    records = [record for each in documents for record in objective.encode({"text": each}, pieces)]
    rng = np.random.default_rng(seed)

    def draw_pairs(number: int) -> list[Pair]:
        drawn = []
        for i in range(number):
            first, second, label = objective.pair(records[i % len(records)], records[(i + 1) % len(records)], rng)
            drawn.append((*truncate_pair(first, second, objective.room, rng), label))
        return drawn

    drawn = draw_pairs(draws)
    model: Any = af.build(describe("bert-base", len(pieces)), seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    new_pairs = draw_pairs(200)
    before = right_answers(model, pieces, new_pairs)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 - step / steps) * min(1, (step + 1) / 10)
        batch = draw_pairs(16)
        loss = F.cross_entropy(scores(model, pieces, batch), torch.tensor([label for *_, label in batch]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = right_answers(model, pieces, new_pairs)
    with torch.no_grad():
        chances = scores(model, pieces, drawn[:pairs]).softmax(-1)[:, FOLLOWS].tolist()
    rows = [
        [pieces.decode(first.tolist()), pieces.decode(second.tolist()), "is next" if label == FOLLOWS else "not next",
         len(first) + len(second) + 3, chance]
        for (first, second, label), chance in zip(drawn, chances)
    ]  # fmt: skip
    share = sum(label == FOLLOWS for *_, label in drawn) / draws

    def draw() -> Any:
        answers = [plain(shorten(f"{label} (p = {chance:.2f}): {second}", 120)) for _, second, label, _, chance in rows]
        begins = [plain(shorten(first, 80)) for first, *_ in rows]
        left, right = (1 + max(map(len, texts)) for texts in (begins, answers))
        figure, axes = new(1, 1, 0.075 * (left + right), 0.3 + 0.4 * len(rows))
        for y, (first, answer) in enumerate(zip(begins, answers, strict=True)):
            shade = "#cfe3f5" if answer.startswith("is next") else "#fbe0c4"
            axes[0, 0].text(-1, -y, first, ha="right", va="center", fontsize=9)
            box = {"facecolor": shade, "edgecolor": "0.6", "boxstyle": "round"}
            axes[0, 0].text(1, -y, answer, va="center", fontsize=9, bbox=box)
        axes[0, 0].set_xlim(-left, right)
        axes[0, 0].set_ylim(0.6 - len(rows), 0.6)
        axes[0, 0].set_axis_off()
        return figure

    return Shown(
        f"Of {draws:,} pairs, {share:.1%} are two parts of one text; the others end with a random sentence. From the "
        f"vector of [CLS] the untrained model answers {before:.0%} of 200 more pairs of these texts right, and "
        f"{after:.0%} after {amount(steps, 'step')}.",
        [
            Table("pairs", ("A", "B", "label", "tokens", "p(is next)"), rows),
            Table(f"{draws:,} pairs", ("label", "share"), [("is next", share), ("not next", 1 - share)]),
            Table("200 more pairs of the same texts", ("steps", "right answers"), [(0, before), (steps, after)]),
        ],
        draw,
    )


def scores(model: Any, pieces: Any, pairs: list[Pair]) -> torch.Tensor:
    """Return the scores of both labels (B, 2), computed from the last vector of [CLS]."""
    begin, separator = pieces.cls_token_id, pieces.sep_token_id
    ids, real = pad([[begin, *first, separator, *second, separator] for first, second, _ in pairs])
    segments, _ = pad([[0] * (len(first) + 2) + [1] * (len(second) + 1) for first, second, _ in pairs])
    return model(input_ids=ids, token_type_ids=segments, attention_mask=real.long()).seq_relationship_logits


@torch.no_grad()
def right_answers(model: Any, pieces: Any, pairs: list[Pair]) -> float:
    right = scores(model, pieces, pairs).argmax(-1) == torch.tensor([label for *_, label in pairs])
    return float(right.float().mean())
