"""Do two sentences say the same (MRPC): a small encoder from scratch, which has little to learn it from."""

from __future__ import annotations

from anyformer.objectives.classify import Classify
from anyformer.recipes._encoder import small_bert, vocabulary
from anyformer.recipes.mrpc import LABELS, tables
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Keep, Run


def run(data: str = "data") -> Run:
    return Run(
        name="mrpc-scratch",
        model=small_bert("BertForSequenceClassification", LABELS),
        vocabulary=vocabulary(),
        data=tables(data),
        objective=Classify(labels=LABELS, pair=True),
        optimizer=AdamW(lr=3e-4, weight_decay=0.01),
        schedule=Linear(warmup=60),
        batch=Batch(examples=32),
        steps=1000,
        evaluate=Evaluate(every=100, metrics=("accuracy", "f1"), best="f1"),
        keep=Keep(every=100),
    )
