"""Fine-tuning of encoders on GLUE's tasks and on tagging, with scores on data that chose nothing."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data import Data, Held, Source, TrainedWordPiece
from anyformer.evaluate import Evaluation
from anyformer.evaluate.during_training import training_metrics
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Row, Values
from anyformer.objectives.masked import Masked
from anyformer.recipes import recipe
from anyformer.recipes.glue import TASKS, classify_run, public_copy, table
from anyformer.recipes.shared.folders import first_of
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Evaluate, Keep, Pretrained, Run
from anyformer.train.trainer import Trainer
from anyformer_course.lab.english import document_data
from anyformer_course.lab.made_up_language import Language
from anyformer_course.lab.runs import reader

METRICS = {"cola": "matthews", "mrpc": "f1", "rte": "accuracy", "sst2": "accuracy", "stsb": "spearman", "wnut17": "f1"}
LENGTH = 128  # longest text or pair in tokens


def data_home(values: Values, place: Place) -> str:
    """Return the folder of --data, by default data/. A form with "made up" writes its own data."""
    return place.data("glue_sst2", write_made_up) if values.get("made up") else values["data"] or "data"


def write_made_up(folder: Path) -> None:
    """Write texts of two topics in the format of SST-2; the label is the topic."""
    language, draw = Language(topics=2, words=3), np.random.default_rng(0)
    for name, column in (("train", "sentence"), ("dev", "content"), ("test", "content")):
        lines = [f"label\t{column}", *(f"{i % 2}\t{language.text(draw, 1, i % 2)[0]}" for i in range(40))]
        (folder / f"{name}.tsv.gz").write_bytes(gzip.compress("\n".join(lines).encode() + b"\n", mtime=0))


def published_encoder(values: Values, place: Place) -> str:
    """Return the folder of MiniLM in --data. For made-up data: the folder of a small encoder, trained for one step."""
    home = data_home(values, place)
    if not values.get("made up"):
        return first_of(f"{home}/all-MiniLM-L6-v2", f"{home}/minilm", f"{home}/demo/minilm")
    spec = reader("bert", "BertForMaskedLM", 16, 2, 2, LENGTH, vocab_size=200)
    run = training_run(
        "start",
        spec,
        document_data(place, None),
        place.device,
        steps=1,
        batch=2,
        length=LENGTH,
        lr=1e-4,
        objective=Masked(),
        vocabulary=TrainedWordPiece(size=200),
    )
    place.train(run, name="start")
    return str(place.folder / "start")


def task_data(home: str, task: str) -> Data:
    """Return a task's data. `valid` may choose a learning rate, `test` is only scored."""
    if task == "wnut17":
        return recipe("wnut17", home).data
    if task == "rte":  # GLUE's test labels are not public: its development set is the test set here
        held = Held(source=table(TASKS[task], f"{home}/glue_rte", "train"), one_in=10, stratify="label")
        return Data(train=held, valid=held.replace(out=True), test=table(TASKS[task], f"{home}/glue_rte", "dev"))
    data = public_copy(home, task)
    if task == "cola":  # in-domain and out-of-domain sentences
        (valid, test) = (data.valid.replace(path=path) for path in data.valid.path)  # type: ignore[union-attr]
        return data.replace(valid=valid, test=test)
    return data


def tuning_run(
    task: str,
    home: str,
    model: Pretrained,
    device: str,
    *,
    steps: int,
    lr: float,
    seed: int = 0,
    freeze: tuple[str, ...] = (),
) -> Run:
    """Return a run that fine-tunes an encoder for a task. `model.architecture` is a prefix of classes: Bert."""
    settings: dict[str, Any] = {
        "optimizer": AdamW(lr=lr, betas=(0.9, 0.999), weight_decay=0.01),
        "schedule": Linear(warmup=max(steps // 10, 1)),
        "steps": steps,
        "evaluate": Evaluate(every=steps, metrics=(METRICS[task],), patience=None),
        "keep": Keep(every=steps, last=1, best=False),
        "precision": "bf16" if device.startswith("cuda") else "fp32",
        "freeze": freeze,
        "seed": seed,
    }
    if task == "wnut17":
        tags = recipe(task, home)
        assert isinstance(tags.model, Pretrained)
        model = model.replace(architecture=f"{model.architecture}ForTokenClassification", labels=tags.model.labels)
        return tags.replace(model=model, data=tags.data.replace(unfit="skip"), **settings)
    model = model.replace(architecture=f"{model.architecture}ForSequenceClassification")
    return classify_run(task, model, task_data(home, task), LENGTH, **settings)


def held_out_score(trainer: Trainer) -> float:
    """Return the task's metric on the test part of its data."""
    run = trainer.run
    assert isinstance(run.data.test, Source)
    evaluation = Evaluation(run.data.test, trainer.objective, trainer.tokenizer, run.evaluate.metrics, skip=True)
    with trainer.eval_mode():
        scores = training_metrics(evaluation, trainer.tokenizer.filler, 1, None)(trainer, {})
    return scores[run.evaluate.metrics[0]]


def tune(run: Run, place: Place, name: str) -> tuple[Trainer, Row]:
    """Fine-tune; return the trainer, and the metric on validation and test data."""
    trainer = place.train(run, name=name)
    return trainer, {"valid": trainer.scores[run.evaluate.metrics[0]], "test": held_out_score(trainer)}


def best_rates(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Group rows by the fields `names`; of each group, keep the rows with the learning rate whose mean validation score
    over seeds is best, one row per seed."""
    groups: dict[tuple[Any, ...], dict[float, list[Row]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), {}).setdefault(row["lr"], []).append(row)
    return {key: max(by_rate.values(), key=mean_valid) for key, by_rate in groups.items()}


def mean_valid(rows: list[Row]) -> float:
    return sum(row["valid"] for row in rows) / len(rows)


def check_folders(path: str, *folders: str) -> None:
    """Raise ValueError if one of these folders is missing in --data."""
    for name in folders:
        if not (Path(path) / name).is_dir():
            raise ValueError(f"--data {path}: no folder {name} in it; `anyformer fetch` lists where folders come from")
