"""GLUE's nine tasks [Wang et al. 2018]: where its files have what, how a model is tuned for each as published for BERT
[Devlin et al. 2019], and the one score that is made of theirs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from anyformer.data import TSV, Data
from anyformer.objectives.classify import Classify
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Keep, Pretrained, Run

EPOCHS, EXAMPLES, LENGTH, RATE = 3, 32, 128, 2e-5


class Task(NamedTuple):
    folder: str
    columns: Mapping[str, str]  # what the objective calls them -> what the file does
    labels: tuple[str, ...]  # none: a number
    metrics: tuple[str, ...]
    names: tuple[str, ...] = ()  # of the columns, where the file does not say
    valid: tuple[str, ...] = ("dev",)


ENTAILED = ("entailment", "not_entailment")
SENTENCES = {"text": "sentence1", "pair": "sentence2"}
TASKS = {
    "cola": Task(
        "CoLA", {"text": "sentence"}, ("unacceptable", "acceptable"), ("matthews",),
        names=("source", "label", "star", "sentence"),
    ),
    "sst2": Task("SST-2", {"text": "sentence"}, ("negative", "positive"), ("accuracy",)),
    "mrpc": Task(
        "MRPC", {"text": "#1 String", "pair": "#2 String", "label": "Quality"}, ("different", "equivalent"),
        ("f1", "accuracy"),
    ),
    "stsb": Task("STS-B", {**SENTENCES, "label": "score"}, (), ("pearson", "spearman")),
    "qqp": Task(
        "QQP", {"text": "question1", "pair": "question2", "label": "is_duplicate"}, ("different", "duplicate"),
        ("f1", "accuracy"),
    ),
    "mnli": Task(
        "MNLI", {**SENTENCES, "label": "gold_label"}, ("entailment", "neutral", "contradiction"), ("accuracy",),
        valid=("dev_matched", "dev_mismatched"),
    ),
    "qnli": Task("QNLI", {"text": "question", "pair": "sentence"}, ENTAILED, ("accuracy",)),
    "rte": Task("RTE", SENTENCES, ENTAILED, ("accuracy",)),
    "wnli": Task("WNLI", SENTENCES, ENTAILED[::-1], ("accuracy",)),
}  # fmt: skip


def table(task: Task, home: str | Path, name: str) -> TSV:
    """A file of a task's folder, compressed or not."""
    plain = Path(home) / f"{name}.tsv"
    packed = plain.with_name(f"{name}.tsv.gz")
    return TSV(path=str(packed if packed.is_file() else plain), columns=task.columns, names=task.names)


def rows(source: TSV) -> int:
    return sum(row.example is not None for row in source.raw())


def run_of(
    name: str, home: str | Path, model: Pretrained, num_rows: int, *, lr: float = RATE, length: int = LENGTH
) -> Run:
    """A task of the folder `home`, whose training file has so many rows. Of two development sets the second is the
    run's test: GLUE keeps the labels of its own to itself."""
    task = TASKS[name]
    steps = -(-EPOCHS * num_rows // EXAMPLES)
    train, valid, *others = (table(task, home, each) for each in ("train", *task.valid))
    return Run(
        name=name,
        model=model.replace(labels=task.labels or ("similarity",)),
        data=Data(train=train, valid=valid, test=others[0] if others else None),
        objective=Classify(
            labels=task.labels,
            pair="pair" in task.columns,
            length=length,
            **({} if task.labels else {"low": 0.0, "high": 5.0}),
        ),
        optimizer=AdamW(lr=lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01),
        schedule=Linear(warmup=steps // 10),
        batch=Batch(examples=EXAMPLES),
        steps=steps,
        evaluate=Evaluate(every=steps, metrics=task.metrics),
        keep=Keep(every=max(steps // 5, 1), last=1, best=False),
    )


def score(results: Mapping[str, Mapping[str, float]]) -> float:
    """0 to 100, of metrics by task: a task counts once, with the mean of its metrics (of MNLI, of both development
    sets). Of all nine it is GLUE's own."""
    return 100 * fmean(fmean(metrics.values()) for metrics in results.values())
