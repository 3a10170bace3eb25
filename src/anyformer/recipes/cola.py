"""Is a sentence grammatical (CoLA): a published MiniLM, trained further."""

from __future__ import annotations

from anyformer.data import TSV, Data
from anyformer.objectives.classify import Classify
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Keep, Pretrained, Run

LABELS = ("unacceptable", "acceptable")
NAMES = ("origin", "label", "star", "text")


def run(data: str = "data") -> Run:
    home = f"{data}/glue_cola"
    return Run(
        name="cola",
        model=Pretrained(path=f"{data}/all-MiniLM-L6-v2", architecture="BertForSequenceClassification", labels=LABELS),
        data=Data(
            train=TSV(path=f"{home}/train.tsv.gz", names=NAMES),
            valid=TSV(path=(f"{home}/in_domain_dev.tsv.gz", f"{home}/out_of_domain_dev.tsv.gz"), names=NAMES),
        ),
        objective=Classify(labels=LABELS),
        optimizer=AdamW(lr=5e-5, betas=(0.9, 0.999), weight_decay=0.01),
        schedule=Linear(warmup=100),
        batch=Batch(examples=32),
        steps=1300,
        evaluate=Evaluate(every=100, metrics=("matthews", "accuracy"), best="matthews"),
        keep=Keep(every=100),
    )
