"""Answers that are spans of a paragraph (a part of SQuAD 1.1): a small encoder from scratch."""

from __future__ import annotations

from anyformer.objectives.answer import Answer
from anyformer.recipes._encoder import small_bert, vocabulary
from anyformer.recipes.squad import questions
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Keep, Run


def run(data: str = "data") -> Run:
    return Run(
        name="squad-scratch",
        model=small_bert("BertForQuestionAnswering"),
        vocabulary=vocabulary(),
        data=questions(data),
        objective=Answer(length=256, stride=64),
        optimizer=AdamW(lr=3e-4, weight_decay=0.01),
        schedule=Linear(warmup=100),
        batch=Batch(examples=16),
        steps=1500,
        evaluate=Evaluate(every=250, metrics=("exact_match", "f1"), best="f1"),
        keep=Keep(every=250),
    )
