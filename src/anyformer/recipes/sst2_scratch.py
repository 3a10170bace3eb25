"""Is a sentence about a film kind or not (SST-2): a small encoder from scratch."""

from __future__ import annotations

from anyformer.objectives.classify import Classify
from anyformer.recipes._encoder import small_bert, vocabulary
from anyformer.recipes.sst2 import LABELS, tables
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Keep, Run


def run(data: str = "data") -> Run:
    return Run(
        name="sst2-scratch",
        model=small_bert("BertForSequenceClassification", LABELS),
        vocabulary=vocabulary(),
        data=tables(data),
        objective=Classify(labels=LABELS),
        optimizer=AdamW(lr=3e-4, weight_decay=0.01),
        schedule=Linear(warmup=300),
        batch=Batch(examples=32),
        steps=4000,
        evaluate=Evaluate(every=500, metrics=("accuracy",), best="accuracy"),
        keep=Keep(every=500),
    )
