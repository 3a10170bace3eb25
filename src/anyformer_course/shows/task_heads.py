"""BERT's tasks: what each task reads, the shape of its answer, and how many parameters it adds."""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer.look.figures import bars
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._pieces import encode, tokenizer
from anyformer_course.shows._trained import describe


def example(text: str = "who barked", second: str = "the dog barked at the cat", *, model: str = "bert-base") -> Shown:
    """Run a small BERT with each head on the texts, and count the head on the description `model`."""
    from anyformer.parts.head.classify import ClassifyHead, MultipleChoiceHead, PooledOutput
    from anyformer.parts.head.span import SpanHead
    from anyformer.parts.head.tag import TagHead

    spec = af.spec(model).replace(ties=())
    if not hasattr(spec.head, "pool"):
        raise ValueError(f"{model} has no pooler; take a BERT, for example bert-large")
    pool = spec.head.pool
    full = af.count(spec.replace(head=PooledOutput(pool=pool))).parameters
    body = full - spec.width**2 - spec.width  # tasks that read every token do not use the pooler
    tasks: dict[str, tuple[str, Any, bool, int]] = {  # what it reads, its head, whether it reads both texts
        "one text: class (SST-2, CoLA)": ("[CLS]", ClassifyHead(num_labels=2, pool=pool), False, full),
        "two texts: class (MNLI, QQP)": ("[CLS]", ClassifyHead(num_labels=3, pool=pool), True, full),
        "choices (SWAG)": ("[CLS] of each", MultipleChoiceHead(pool=pool), True, full),
        "answer as a span (SQuAD)": ("every token", SpanHead(), True, body),
        "tag of every token (CoNLL)": ("every token", TagHead(num_labels=9), False, body),
    }
    pieces = tokenizer(text, second)
    small = describe("bert-base", len(pieces))
    rows = []
    for task, (reads, head, pair, base) in tasks.items():
        inputs = encode(pieces, text, second if pair else "")
        if "choices" in task:
            inputs = {key: torch.stack([value, value], 1) for key, value in inputs.items()}  # (B, C, T)
        with torch.no_grad():
            answer = af.build(small.replace(head=head, ties=()), seed=0).eval()(**inputs)
        shape = ", ".join(f"{key} {tuple(value.shape[1:])}" for key, value in answer.items() if value is not None)
        added = af.count(spec.replace(head=head)).parameters - base
        rows.append([task, reads, inputs["input_ids"].shape[-1], shape, added, added / full])

    def draw() -> Any:
        return bars([(row[0], row[4]) for row in rows], f"new parameters on {model} ({full:,} pretrained)")

    most = max(rows, key=lambda row: row[4])
    return Shown(
        f"a task adds at most {most[4]:,} parameters to the {full:,} of {model} ({most[5]:.4%})",
        [Table("tasks", ("task", "reads", "tokens", "answer", "new parameters", "share"), rows)],
        draw,
    )
