"""How much two sentences mean the same, from 0 to 5 (STS-B): a published MiniLM, trained further."""

from __future__ import annotations

from anyformer.data import CSV, Data
from anyformer.objectives.classify import Classify
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Keep, Pretrained, Run


def run(data: str = "data") -> Run:
    def table(name: str) -> CSV:
        return CSV(path=f"{data}/stsb/stsb-en-{name}.csv.gz", names=("text", "pair", "label"))

    return Run(
        name="stsb",
        model=Pretrained(
            path=f"{data}/all-MiniLM-L6-v2", architecture="BertForSequenceClassification", labels=("similarity",)
        ),
        data=Data(train=table("train"), valid=table("dev"), test=table("test")),
        objective=Classify(pair=True, low=0.0, high=5.0),
        optimizer=AdamW(lr=5e-5, betas=(0.9, 0.999), weight_decay=0.01),
        schedule=Linear(warmup=50),
        batch=Batch(examples=32),
        steps=720,
        evaluate=Evaluate(every=90, metrics=("spearman", "pearson"), best="spearman"),
        keep=Keep(every=90),
    )
