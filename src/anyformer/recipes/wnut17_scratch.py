"""New and rare names in short messages (WNUT-17): a small encoder from scratch."""

from __future__ import annotations

from anyformer.objectives.tag import Tag
from anyformer.recipes._encoder import small_bert, vocabulary
from anyformer.recipes.wnut17 import LABELS, sentences
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Keep, Run


def run(data: str = "data") -> Run:
    return Run(
        name="wnut17-scratch",
        model=small_bert("BertForTokenClassification", LABELS),
        vocabulary=vocabulary(),
        data=sentences(data),
        objective=Tag(labels=LABELS),
        optimizer=AdamW(lr=3e-4, weight_decay=0.01),
        schedule=Linear(warmup=100),
        batch=Batch(examples=16),
        steps=1500,
        evaluate=Evaluate(every=100, metrics=("f1",), best="f1"),
        keep=Keep(every=100),
    )
