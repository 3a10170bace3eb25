"""Is a sentence about a film kind or not (SST-2): a published MiniLM, trained further."""

from __future__ import annotations

from anyformer.data import TSV, Data
from anyformer.objectives.classify import Classify
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Keep, Pretrained, Run

LABELS = ("negative", "positive")


def tables(data: str) -> Data:
    """The files name the sentence differently."""
    return Data(
        train=TSV(path=f"{data}/glue_sst2/train.tsv.gz", columns={"text": "sentence"}),
        valid=TSV(path=f"{data}/glue_sst2/dev.tsv.gz", columns={"text": "content"}),
        test=TSV(path=f"{data}/glue_sst2/test.tsv.gz", columns={"text": "content"}),
    )


def run(data: str = "data") -> Run:
    return Run(
        name="sst2",
        model=Pretrained(path=f"{data}/all-MiniLM-L6-v2", architecture="BertForSequenceClassification", labels=LABELS),
        data=tables(data),
        objective=Classify(labels=LABELS),
        optimizer=AdamW(lr=5e-5, betas=(0.9, 0.999), weight_decay=0.01),
        schedule=Linear(warmup=300),
        batch=Batch(examples=32),
        steps=6000,
        evaluate=Evaluate(every=500, metrics=("accuracy",), best="accuracy"),
        keep=Keep(every=500),
    )
