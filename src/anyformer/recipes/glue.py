"""GLUE's nine tasks [Wang et al. 2018]: their files, BERT's fine-tuning for each [Devlin et al. 2019], and their score.

The recipes fine-tune a small published encoder, or train one from scratch, on public copies of six of the tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from anyformer.data import CSV, TSV, Data, Held
from anyformer.objectives.classify import Classify
from anyformer.recipes.shared.encoder import from_scratch
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Keep, Pretrained, Run

RECIPES = {
    "cola": "Is a sentence grammatical (CoLA): fine-tune a published MiniLM.",
    "mrpc": "Do two sentences mean the same (MRPC): fine-tune a published MiniLM.",
    "mrpc-scratch": "Do two sentences mean the same (MRPC): a small encoder from scratch, on few examples.",
    "qnli": "Does a sentence answer a question (QNLI, 104,743 pairs): fine-tune a published MiniLM.",
    "rte": "Does one sentence follow from another (RTE, 2,490 pairs): fine-tune a published MiniLM.",
    "sst2": "Is a film review positive or negative (SST-2): fine-tune a published MiniLM.",
    "sst2-scratch": "Is a film review positive or negative (SST-2): a small encoder from scratch.",
    "stsb": "How similar are two sentences, from 0 to 5 (STS-B): fine-tune a published MiniLM.",
}
EPOCHS, EXAMPLES, LENGTH, RATE = 3, 32, 128, 2e-5


class GlueTask(NamedTuple):
    folder: str
    columns: Mapping[str, str]  # the objective's column name -> the file's
    labels: tuple[str, ...]  # empty: the label is a number
    metrics: tuple[str, ...]
    names: tuple[str, ...] = ()  # column names, if the file has no header
    valid: tuple[str, ...] = ("dev",)


ENTAILED = ("entailment", "not_entailment")
SENTENCES = {"text": "sentence1", "pair": "sentence2"}
TASKS = {
    "cola": GlueTask(
        "CoLA", {}, ("unacceptable", "acceptable"), ("matthews",), names=("origin", "label", "star", "text"),
    ),
    "sst2": GlueTask("SST-2", {"text": "sentence"}, ("negative", "positive"), ("accuracy",)),
    "mrpc": GlueTask(
        "MRPC", {"text": "#1 String", "pair": "#2 String", "label": "Quality"}, ("different", "equivalent"),
        ("f1", "accuracy"),
    ),
    "stsb": GlueTask("STS-B", {**SENTENCES, "label": "score"}, (), ("pearson", "spearman")),
    "qqp": GlueTask(
        "QQP", {"text": "question1", "pair": "question2", "label": "is_duplicate"}, ("different", "duplicate"),
        ("f1", "accuracy"),
    ),
    "mnli": GlueTask(
        "MNLI", {**SENTENCES, "label": "gold_label"}, ("entailment", "neutral", "contradiction"), ("accuracy",),
        valid=("dev_matched", "dev_mismatched"),
    ),
    "qnli": GlueTask("QNLI", {"text": "question", "pair": "sentence"}, ENTAILED, ("accuracy",)),
    "rte": GlueTask("RTE", SENTENCES, ENTAILED, ("accuracy",)),
    "wnli": GlueTask("WNLI", SENTENCES, ENTAILED[::-1], ("accuracy",)),
}  # fmt: skip


def table(task: GlueTask, home: str | Path, name: str) -> TSV:
    """Return a file of a task's folder, compressed or not."""
    plain = Path(home) / f"{name}.tsv"
    packed = plain.with_name(f"{name}.tsv.gz")
    return TSV(path=str(packed if packed.is_file() else plain), columns=task.columns, names=task.names)


def rows(source: TSV) -> int:
    return sum(row.example is not None for row in source.raw())


def classify_run(name: str, model: Pretrained, data: Data, length: int | None = None, **settings: Any) -> Run:
    """Fine-tune a model for a task; `settings` are the other fields of the run."""
    task = TASKS[name]
    objective = Classify(labels=task.labels, pair="pair" in task.columns, length=length)
    return Run(
        name=name,
        model=model.replace(labels=task.labels or ("similarity",)),
        data=data,
        objective=objective if task.labels else objective.replace(low=0.0, high=5.0),
        batch=Batch(examples=EXAMPLES),
        **settings,
    )


def run_of(
    name: str, home: str | Path, model: Pretrained, num_rows: int, *, lr: float = RATE, length: int = LENGTH
) -> Run:
    """Return a task's run with the published settings. Its files are in `home`; the training file has `num_rows` rows.
    The second development set of MNLI is the run's test set, since the labels of GLUE's test sets are not public."""
    task = TASKS[name]
    steps = -(-EPOCHS * num_rows // EXAMPLES)
    train, valid, *others = (table(task, home, each) for each in ("train", *task.valid))
    return classify_run(
        name,
        model,
        Data(train=train, valid=valid, test=others[0] if others else None),
        length,
        optimizer=AdamW(lr=lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01),
        schedule=Linear(warmup=steps // 10),
        steps=steps,
        evaluate=Evaluate(every=steps, metrics=task.metrics),
        keep=Keep(every=max(steps // 5, 1), last=1, best=False),
    )


def score(results: Mapping[str, Mapping[str, float]]) -> float:
    """Return a score from 0 to 100: the mean over tasks of the mean of each task's metrics (for MNLI, on both
    development sets). With all nine tasks, this is the GLUE score."""
    return 100 * fmean(fmean(metrics.values()) for metrics in results.values())


# -- the recipes ------------------------------------------------------------------------------------------------------

PUBLISHED = {"rte": ("glue_rte", 2490), "qnli": ("QNLI", 104_743)}  # folder and number of rows, for `run_of`
TUNING = {  # steps, warmup steps, evaluation
    "cola": (1300, 100, Evaluate(every=100, metrics=("matthews", "accuracy"), best="matthews")),
    "mrpc": (600, 60, Evaluate(every=100, metrics=("accuracy", "f1"), best="f1")),
    "sst2": (6000, 300, Evaluate(every=500, metrics=("accuracy",), best="accuracy")),
    "stsb": (720, 50, Evaluate(every=90, metrics=("spearman", "pearson"), best="spearman")),
}
SCRATCH_STEPS = {"mrpc": 1000, "sst2": 4000}


def public_copy(data: str, name: str) -> Data:
    """Return the data of a public copy of a task; splits and columns may differ from GLUE's files."""
    task, home = TASKS[name], f"{data}/glue_{name}"

    def tsv(*names: str, **columns: str) -> TSV:
        paths = tuple(f"{home}/{each}.tsv.gz" for each in names)
        return TSV(path=paths if len(paths) > 1 else paths[0], columns=columns or task.columns, names=task.names)

    def csv(name: str) -> CSV:
        return CSV(path=f"{data}/stsb/stsb-en-{name}.csv.gz", names=("text", "pair", "label"))

    if name == "cola":
        return Data(train=tsv("train"), valid=tsv("in_domain_dev", "out_of_domain_dev"))
    if name == "mrpc":  # the published split has no validation part: one pair in ten is held out
        held = Held(source=tsv("train"), one_in=10, stratify="label")
        return Data(train=held, valid=held.replace(out=True), test=tsv("test"))
    if name == "sst2":
        return Data(train=tsv("train"), valid=tsv("dev", text="content"), test=tsv("test", text="content"))
    return Data(train=csv("train"), valid=csv("dev"), test=csv("test"))


def run(data: str = "data", name: str = "cola") -> Run:
    task = name.removesuffix("-scratch")
    model = Pretrained(path=f"{data}/all-MiniLM-L6-v2", architecture="BertForSequenceClassification")
    if task in PUBLISHED:
        folder, num_rows = PUBLISHED[task]
        return run_of(task, f"{data}/{folder}", model, num_rows, lr=5e-5)
    steps, warmup, evaluate = TUNING[task]
    tuned = classify_run(
        task,
        model,
        public_copy(data, task),
        optimizer=AdamW(lr=5e-5, betas=(0.9, 0.999), weight_decay=0.01),
        schedule=Linear(warmup=warmup),
        steps=steps,
        evaluate=evaluate,
        keep=Keep(every=evaluate.every),
    )
    return tuned if task == name else from_scratch(tuned, steps=SCRATCH_STEPS[task])
