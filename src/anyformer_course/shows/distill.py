"""Distillation: a student with half the layers learns the teacher's probabilities, by their KL divergence."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.look.figures import new
from anyformer.specs.field_types import Natural, Positive
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._trained import STORIES, pad, train


def example(
    text: str = "the dog", *, steps: Natural = 30, temperature: Positive = 2.0, from_teacher: bool = True, seed: int = 1
) -> Shown:
    """Train a student of 1 layer to imitate a small GPT of 2 layers, from the teacher's weights or from random ones."""
    teacher = train("gpt")
    student = af.build(af.override(teacher.model.spec, {"decoder.depth": 1}), seed=seed)
    if from_teacher:  # every second layer, embedding and norm, as DistilBERT
        weights = teacher.model.state_dict()
        student.load_state_dict({name: weights[name] for name in student.state_dict()})
    lines = sorted({*STORIES.splitlines()})
    rows = [[1, *teacher.ids(line), 0] for line in lines]
    ids, real = pad(rows)
    real = real & (ids != 0)  # predictions after every token but <end>
    with torch.no_grad():
        goal = teacher.model(input_ids=ids).logits[real]  # (N, V)
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3, weight_decay=0.0)
    curve = []
    for step in range(steps + 1):
        scores = student(input_ids=ids).logits[real]
        curve.append(float(divergence(scores.detach(), goal, 1.0)))
        if step < steps:
            optimizer.zero_grad()
            divergence(scores, goal, temperature).backward()
            optimizer.step()
    agree = float((scores.argmax(-1) == goal.argmax(-1)).float().mean())
    prompt = torch.tensor([[1, *teacher.ids(text)]])
    with torch.no_grad():
        both = [model.eval()(input_ids=prompt).logits[0, -1].softmax(-1) for model in (teacher.model, student)]
    best = both[0].topk(6).indices.tolist()
    words = [[teacher.tokens[i], float(both[0][i]), float(both[1][i])] for i in best]
    sizes = [sum(p.numel() for p in model.parameters()) for model in (teacher.model, student)]

    def draw() -> Any:
        figure, axes = new(2, 1, 9, 3.2)
        axes[0, 0].plot(curve)
        axes[0, 0].set_title("KL(teacher, student) by step", fontsize=9)
        for shift, column, label in ((-0.2, 1, "teacher"), (0.2, 2, "student")):
            axes[0, 1].bar([i + shift for i in range(len(words))], [row[column] for row in words], 0.4, label=label)
        axes[0, 1].set_xticks(range(len(words)), [row[0] for row in words])
        axes[0, 1].set_title(f"next word after '{text}'", fontsize=9)
        axes[0, 1].legend(fontsize=8, loc="lower right")
        return figure

    return Shown(
        f"{sizes[1]:,} of {sizes[0]:,} parameters; KL falls from {curve[0]:.2f} to {curve[-1]:.3f}; "
        f"teacher and student choose the same word in {agree:.0%} of the positions",
        [
            Table(f"next word after {text!r}", ("word", "teacher", "student"), words),
            Table("KL divergence", ("step", "KL"), [[i, curve[i]] for i in sorted({0, steps // 3, steps})]),
        ],
        draw,
    )


def divergence(scores: torch.Tensor, goal: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the mean over positions of KL(teacher, student), times temperature^2 [Hinton et al. 2015]."""
    log_student, log_teacher = ((each / temperature).log_softmax(-1) for each in (scores, goal))
    return F.kl_div(log_student, log_teacher, log_target=True, reduction="batchmean") * temperature**2
