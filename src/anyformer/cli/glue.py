"""Fine-tune a model for each of GLUE's nine tasks and report its score on the development sets; the labels of the test
sets are not public. MODEL is a folder or a hub id; --data holds GLUE's folders as published (CoLA/train.tsv, ...).

The settings are those published for BERT: 3 epochs in batches of 32, with warmup over the first tenth. If --lr is
repeated (such as 5e-5, 4e-5, 3e-5 and 2e-5), the best rate is taken for each task. Each task is a separate run in
DIR/TASK; --resume continues the runs that were stopped."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from anyformer.cli.settings import change_run, device_flag
from anyformer.cli.texts import as_json

if TYPE_CHECKING:
    from anyformer.train.run import Run


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="a model folder or a hub id")
    add("--data", metavar="DIR", required=True, help="folder with GLUE's folders")
    add("--task", metavar="NAME", action="append", default=[], help="a task such as cola (default: all)")
    add(
        "--lr",
        metavar="RATE",
        type=float,
        action="append",
        help="learning rate (default: 2e-5); can be repeated, the best is kept",
    )
    add("--set", metavar="PATH=VALUE", action="append", default=[], help="set a field of every run; can be repeated")
    add("--out", metavar="DIR", help="folder of the runs (default: runs/glue-MODEL)")
    add("--resume", action="store_true", help="resume the runs that are there")
    device_flag(parser)
    add("--json", action="store_true", help="print a JSON object")


def run(options: argparse.Namespace) -> None:
    from anyformer.recipes.glue import TASKS, score

    present, missing = find_tasks(options)
    described = {name: runs_of(name, options) for name in present}  # report errors in the files first
    out = Path(options.out or f"runs/glue-{Path(options.model).expanduser().resolve().name}")
    scores, rates = {}, {}
    for name, runs in described.items():
        scores[name], rates[name] = best_run(name, runs, out, options)
    if options.json:
        results = {name: {**metrics, "lr": rates[name]} for name, metrics in scores.items()}
        whole = {"glue": score(scores)} if not missing else {}
        print(as_json({"model": options.model, "tasks": results, "missing": missing, "mean": score(scores), **whole}))
        return
    from anyformer.cli.terminal import table

    rows = [
        (TASKS[name].folder, f"{rates[name]:g}", metric, f"{100 * value:.1f}")
        for name, metrics in scores.items()
        for metric, value in metrics.items()
    ]
    rows.append(("mean" if missing else "GLUE", "", "", f"{score(scores):.1f}"))
    table(("task", "rate", "metric", "value"), rows, right=(1, 3), total=True)
    if missing:
        lacks = ", ".join(TASKS[name].folder for name in missing)
        print(f"GLUE's score is the mean of nine tasks, and {lacks} {'is' if len(missing) == 1 else 'are'} not here")


def find_tasks(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the tasks whose folders exist, and the tasks that are missing for a score."""
    from anyformer.recipes.glue import TASKS
    from anyformer.specs.messages import nearest

    for name in options.task:
        if name not in TASKS:
            raise ValueError(f"no task {name!r}; {nearest(name, TASKS)}")
        if not (Path(options.data) / TASKS[name].folder).is_dir():
            raise ValueError(f"{options.data}: no folder {TASKS[name].folder}")
    present = [name for name, task in TASKS.items() if (Path(options.data) / task.folder).is_dir()]
    if not present:
        folders = ", ".join(task.folder for task in TASKS.values())
        raise ValueError(f"{options.data} has none of GLUE's folders ({folders})")
    present = [name for name in present if name in (options.task or present)]
    return present, [name for name in TASKS if name not in present]


def runs_of(name: str, options: argparse.Namespace) -> list[Run]:
    """Return the runs of a task, one per learning rate."""
    from anyformer.evaluate import check
    from anyformer.recipes.glue import LENGTH, RATE, TASKS, rows, run_of, table
    from anyformer.recipes.shared.models import classifier

    home = Path(options.data) / TASKS[name].folder
    model, limit = classifier(options.model)
    num_rows = rows(table(TASKS[name], home, "train"))
    runs = []
    for lr in options.lr or (RATE,):
        run = run_of(name, home, model, num_rows, lr=lr, length=min(LENGTH, limit or LENGTH))
        runs.append(change_run(run, options.set))
        check(runs[-1].objective, runs[-1].evaluate.metrics)
    for file in TASKS[name].valid:
        table(TASKS[name], home, file).files()
    return runs


def best_run(name: str, runs: list[Run], out: Path, options: argparse.Namespace) -> tuple[dict[str, float], float]:
    """Return the metrics of a task with the best learning rate, and that rate."""
    from anyformer.recipes.glue import score

    tried = {}
    for run in runs:
        folder = out / (name if len(runs) == 1 else f"{name}-{run.optimizer.lr:g}")
        with contextlib.redirect_stdout(sys.stderr):  # only results go to stdout
            tried[run.optimizer.lr] = fine_tune(run, folder, options)
    rate = max(tried, key=lambda lr: score({name: tried[lr]}))
    return tried[rate], rate


def fine_tune(run: Run, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Train one run and return its metrics on each development set."""
    from anyformer.cli.train import train
    from anyformer.evaluate import Evaluation
    from anyformer.evaluate.split import evaluate

    begun = options.resume and (folder / "run.json").is_file()
    trainer = train(run, folder, begun, options.device)
    results: dict[str, float] = {}
    for split, kind in (("valid", "matched"), ("test", "mismatched")):
        source = getattr(run.data, split)
        if source is not None:
            evaluation = Evaluation(source, trainer.objective, trainer.tokenizer, run.evaluate.metrics)
            scores = evaluate(trainer.model.eval(), split, evaluation, length=run.batch.length, seed=run.seed)
            named = f", {kind}" if run.data.test is not None else ""
            results |= {f"{metric}{named}": scores[metric] for metric in run.evaluate.metrics}
    return results
