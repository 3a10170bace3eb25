"""Evaluate a model: its loss, and the published metrics of the task (perplexity and bits per byte for language models).

MODEL is a model folder, a run's folder (its best checkpoint by validation; RUN@last is the newest) or a hub id. RECIPE
gives the data and the objective: a recipe, a run.json or a run's folder (default: MODEL, if it is a run's folder).
MODEL may also be a file that --save wrote: its predictions are scored again, for example on a machine that has the
metric libraries.

--csv FILE (or --jsonl, --text, --images, --tags) evaluates on another file with the columns of the run. If MODEL is not
the folder of a run, --csv needs --label or --target as in `anyformer train`. --report prints the scores of each class,
which classes are confused, and the worst mistakes; the folder of a run gets them in report.html and mistakes.csv."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli.own_data import data_flags, delimiter_of, given_kinds, own_run
from anyformer.cli.settings import change_run, device_flag
from anyformer.cli.texts import as_json
from anyformer.cli.train import find_run

if TYPE_CHECKING:
    from anyformer.data import Source
    from anyformer.evaluate import Evaluation
    from anyformer.train.run import Run

SPLITS = ("test", "valid", "train")
BY = ("position",)
DTYPES = ("auto", "float32", "bfloat16", "float16")
MATRIX = 12  # more classes than this are listed as pairs, not as a matrix
LISTED = 10  # mistakes and pairs of classes that are printed


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="a model folder, a run's folder, or a hub id")
    add("recipe", metavar="RECIPE", nargs="?", help="data and objective: a recipe or a run.json")
    add("--split", metavar="NAME", help="split to evaluate: test, valid or train (default: test if there is one)")
    data_flags(parser)
    add(
        "--metrics",
        metavar="NAMES",
        help="metrics such as bleu,chrf,rouge,wer,f1, or none (default: the metrics of the task)",
    )
    add("--by", metavar="WHAT", help="position: the loss by token index, and its derivative by log(index)")
    add("--num-beams", type=int, metavar="N", default=1, help="beam search with N beams, for tasks that generate text")
    add("--batch", type=int, metavar="N", default=32, help="examples per batch (default: 32)")
    add("--most", type=int, metavar="N", help="evaluate only the first N examples")
    add("--set", metavar="PATH=VALUE", action="append", default=[], help="set a field of the recipe; can be repeated")
    add("--data", metavar="DIR", default="data", help="folder of the data sets (default: data/)")
    add("--save", metavar="FILE", help="also write each prediction, with its row, input and score (.jsonl, .csv, .tsv)")
    add("--report", action="store_true", help="also print scores by class, confusions and the worst mistakes")
    add("--dtype", metavar="NAME", default="auto", help=f"{', '.join(DTYPES)}")
    device_flag(parser)
    add("--json", action="store_true", help="print a JSON object")


def run(options: argparse.Namespace) -> None:
    from anyformer.specs.messages import nearest

    for name, valid in (("split", SPLITS), ("dtype", DTYPES), ("by", BY)):
        given = getattr(options, name)
        if given is not None and given not in valid:
            raise ValueError(f"no {name} {given!r}; {nearest(given, valid)}")
    if options.by and (options.metrics or options.save or options.report):
        raise ValueError("--by position computes the loss only; leave --metrics, --save and --report out")
    for name in ("num_beams", "batch", "most"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {value}; it must be at least 1")
    kinds = given_kinds(options)
    if len(kinds) > 1 or (kinds and options.split):
        raise ValueError(f"give one of {', '.join(f'--{name}' for name in (*kinds, *['split'] * bool(options.split)))}")
    scores, facts, evaluation = evaluate_model(options)
    if options.json:
        print(as_json({**facts, **scores}))
        return
    from anyformer.cli.terminal import table

    about = f"{facts['model']}: {facts['examples']:,} examples of {facts['recipe']}, {facts['split']}"
    print(about + (f", {facts['num_beams']} beams" if "num_beams" in facts else ""))
    if options.by:
        table(
            ("tokens before", "tokens", "loss", "slope"),
            [position_row(each) for each in scores["positions"]],
            (1, 2, 3),
        )
        return
    table(("metric", "value"), [(name, f"{value:.4f}") for name, value in scores.items()], right=(1,))
    if options.report:
        print_report(evaluation, options.model, facts["split"])


def position_row(each: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a table row."""
    index = f"{each['first']:,}" if each["first"] == each["last"] else f"{each['first']:,} to {each['last']:,}"
    slope = "" if each["slope"] is None else f"{each['slope']:.4f}"
    return index, f"{each['tokens']:,}", f"{each['loss']:.4f}", slope


def described_run(options: argparse.Namespace, home: Path) -> Run:
    """Return the run that gives the objective and the columns."""
    from anyformer.train.run import description_of, model_of
    from anyformer.weights import hub

    if options.recipe is not None or (home / "run.json").is_file():
        names = ("label", "target", "column", "prompt", "answer", "multi_label")
        if given := [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]:
            raise ValueError(f"{', '.join(given)}: the columns are those of the run; leave them out")
        return find_run(options.recipe or str(home), options.data, options.set)[0]
    if not home.exists() and not hub.in_cache(options.model):
        raise ValueError(f"{hub.no_such_folder(options.model)}; with a hub id, give a recipe too")
    if not given_kinds(options):
        raise ValueError("give a recipe or --csv FILE: MODEL is not the folder of a run, so its data is unknown")
    theirs = description_of(model_of(options.model)).labels
    run = own_run(options, theirs)
    if run.objective.labels and {*run.objective.labels} <= {*theirs}:  # the data may lack classes
        run = run.replace(objective=run.objective.replace(labels=theirs))
    return change_run(run, options.set)


def select_source(run: Run, options: argparse.Namespace) -> tuple[str, Source]:
    """Return the data to evaluate on, and its name: a split of the run, or another file."""
    from anyformer.data import First
    from anyformer.data.other_files import with_file
    from anyformer.evaluate.split import select_split

    kinds = given_kinds(options)
    if kinds:
        split: str = getattr(options, kinds[0])
        source = with_file(run.data.train, split, delimiter=delimiter_of(options), encoding=options.encoding)
    else:
        split, source = select_split(run.data, options.split)
    return split, source if options.most is None else First(source=source, count=options.most)


def evaluate_model(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any], Evaluation]:
    """Return the scores, the facts about model and data that are printed with them, and the evaluation."""
    from anyformer.cli.terminal import progress, spinner
    from anyformer.weights import hub

    home = Path(hub.run_of(options.model)[0]).expanduser()
    description = described_run(options, home)
    with spinner(f"reading {options.model}"):
        from anyformer.checkpoint import load
        from anyformer.data.prepare import report_skipped
        from anyformer.evaluate import Evaluation
        from anyformer.evaluate.predictions import prediction_rows, write_rows
        from anyformer.evaluate.split import evaluate, evaluate_by_position, tokenizer_in
        from anyformer.kernels import hardware
        from anyformer.objectives.metrics import TEXTS

        split, source = select_source(description, options)
        names = metric_names(options.metrics, description)
        facts: dict[str, Any] = {"model": str(home), "recipe": description.name, "split": split}
        if home.is_file():
            return score_predictions(home, Evaluation(source, description.objective, None, names), facts, options)
        device, folder = hardware.device(options.device), hub.resolve(options.model)
        tokenizer = tokenizer_in(folder, description.vocabulary is not None)
        skip = description.data.unfit == "skip"
        evaluation = Evaluation(source, description.objective.ready(tokenizer), tokenizer, names, skip=skip)
        if options.save is not None and Path(options.save).is_dir():
            raise ValueError(f"--save {options.save} is a folder")
        model = load(folder, dtype=options.dtype, device=device)
    facts["model"] = str(folder)
    row: dict[str, Any] = {"length": description.batch.length, "seed": description.seed}
    if options.by:
        from dataclasses import asdict

        with spinner(f"{description.name}, {split}"):
            groups = evaluate_by_position(model, split, evaluation, options.batch, **row)
        facts["examples"] = len(evaluation.split or ())
        return {"positions": [asdict(group) for group in groups]}, facts, evaluation
    with progress(f"{description.name}, {split}") as advance:
        settings = {"size": options.batch, "num_beams": options.num_beams, "progress": advance}
        scores = evaluate(model, split, evaluation, **settings, **row)
    for line in report_skipped({split: evaluation.split}) if evaluation.split is not None else ():
        print(line, file=sys.stderr)
    if options.save is not None:
        write_rows(Path(options.save), prediction_rows(evaluation))
    facts["examples"] = len(evaluation.examples[0] if evaluation.answered is not None else evaluation.split or ())
    facts |= {"num_beams": options.num_beams} if evaluation.metrics is TEXTS else {}
    return scores, facts, evaluation


def metric_names(given: str | None, run: Run) -> list[str]:
    """Return the metrics to compute: the ones in --metrics, or all metrics of the task and of the run."""
    from anyformer.objectives.metrics import available_metrics

    if given is not None:
        return [] if given == "none" else [name.strip() for name in given.split(",") if name.strip()]
    task = run.objective.task
    usual = available_metrics(task.metrics) if task.metrics else ()
    return [*dict.fromkeys((*usual, *task.loss_metrics, *run.evaluate.metrics))]


def score_predictions(
    path: Path, evaluation: Evaluation, facts: dict[str, Any], options: argparse.Namespace
) -> tuple[dict[str, float], dict[str, Any], Evaluation]:
    from anyformer.evaluate.predictions import read_predictions

    if options.by or options.report:
        what = "--by position" if options.by else "--report"
        raise ValueError(f"{what} needs a model; this is a file of predictions")
    answered = read_predictions(path, evaluation.task)
    return evaluation.score(answered), {**facts, "examples": len(answered.wanted)}, evaluation


def print_report(evaluation: Evaluation, model: str, split: str) -> None:
    """Print the scores of each class, confusions and the worst mistakes. The folder of a run gets them too."""
    from anyformer.cli.terminal import table
    from anyformer.evaluate.class_report import class_scores, confusion, matrix_rows, shorten
    from anyformer.evaluate.predictions import mistakes_title, prediction_rows, worst_mistakes
    from anyformer.evaluate.report_page import add_to_report
    from anyformer.weights import hub

    rows = prediction_rows(evaluation)
    assert evaluation.answered is not None
    counted = confusion(evaluation.task, evaluation.answered)
    scores = class_scores(evaluation.task, evaluation.answered, counted)
    if scores:
        cells = [(each.name, *(f"{value:.3f}" for value in each[1:4]), f"{each.examples:,}") for each in scores]
        table(("class", "precision", "recall", "f1", "examples"), cells, right=(1, 2, 3, 4))
    if counted is not None:
        if len(counted.labels) <= MATRIX:
            header, counts = matrix_rows(counted)
            table(header, counts, right=range(1, len(header)))
        else:
            pairs = [(right, wrong, str(number)) for right, wrong, number in counted.commonest()[:LISTED]]
            table(("class", "predicted as", "times"), pairs, right=(2,))
    wrong = worst_mistakes(rows)
    print(f"{mistakes_title(wrong)}:")
    if wrong:
        table([*wrong[0]], [[shorten(value, 60) for value in row.values()] for row in wrong[:LISTED]])
    if written := add_to_report(Path(hub.run_of(model)[0]).expanduser(), split, wrong, counted, scores):
        print(f"written: {', '.join(map(str, written))}")
