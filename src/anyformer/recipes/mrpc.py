"""Do two sentences say the same (MRPC): a published MiniLM, trained further."""

from __future__ import annotations

from anyformer.data import TSV, Data, Held
from anyformer.objectives.classify import Classify
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Keep, Pretrained, Run

LABELS = ("different", "equivalent")


def tables(data: str) -> Data:
    """The published split has no validation part: one pair in ten is held out."""

    def table(name: str) -> TSV:
        columns = {"text": "#1 String", "pair": "#2 String", "label": "Quality"}
        return TSV(path=f"{data}/glue_mrpc/{name}.tsv.gz", columns=columns)

    held = Held(source=table("train"), one_in=10, stratify="label")
    return Data(train=held, valid=held.replace(out=True), test=table("test"))


def run(data: str = "data") -> Run:
    return Run(
        name="mrpc",
        model=Pretrained(path=f"{data}/all-MiniLM-L6-v2", architecture="BertForSequenceClassification", labels=LABELS),
        data=tables(data),
        objective=Classify(labels=LABELS, pair=True),
        optimizer=AdamW(lr=5e-5, betas=(0.9, 0.999), weight_decay=0.01),
        schedule=Linear(warmup=60),
        batch=Batch(examples=32),
        steps=600,
        evaluate=Evaluate(every=100, metrics=("accuracy", "f1"), best="f1"),
        keep=Keep(every=100),
    )
