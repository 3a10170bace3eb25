"""Evaluate a model: its loss, and the published metrics of the task (perplexity and bits per byte for language models).

MODEL is a model folder, a run's folder (its best checkpoint by validation; RUN@last is the newest) or a hub id. RECIPE
gives the data and the objective: a recipe, a run.json or a run's folder (default: MODEL, if it is a run's folder).
MODEL may also be a file that --save wrote: its predictions are scored again, for example on a machine that has the
metric libraries."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from anyformer.cli.settings import device_flag
from anyformer.cli.texts import as_json

SPLITS = ("test", "valid", "train")
BY = ("position",)
DTYPES = ("auto", "float32", "bfloat16", "float16")


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="a model folder, a run's folder, or a hub id")
    add("recipe", metavar="RECIPE", nargs="?", help="data and objective: a recipe or a run.json")
    add("--split", metavar="NAME", help="split to evaluate: test, valid or train (default: test if there is one)")
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
    add("--save", metavar="FILE", help="also write every prediction to a file, one JSON object per line")
    add("--dtype", metavar="NAME", default="auto", help=f"{', '.join(DTYPES)}")
    device_flag(parser)
    add("--json", action="store_true", help="print a JSON object")


def run(options: argparse.Namespace) -> None:
    from anyformer.specs.messages import nearest

    for name, valid in (("split", SPLITS), ("dtype", DTYPES), ("by", BY)):
        given = getattr(options, name)
        if given is not None and given not in valid:
            raise ValueError(f"no {name} {given!r}; {nearest(given, valid)}")
    if options.by and (options.metrics or options.save):
        raise ValueError("--by position computes the loss only; leave --metrics and --save out")
    for name in ("num_beams", "batch", "most"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {value}; it must be at least 1")
    scores, facts = evaluate_model(options)
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


def position_row(each: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a table row."""
    index = f"{each['first']:,}" if each["first"] == each["last"] else f"{each['first']:,} to {each['last']:,}"
    slope = "" if each["slope"] is None else f"{each['slope']:.4f}"
    return index, f"{each['tokens']:,}", f"{each['loss']:.4f}", slope


def evaluate_model(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the scores, and the facts about model and data that are printed with them."""
    from anyformer.cli.terminal import progress, spinner
    from anyformer.cli.train import find_run
    from anyformer.weights import hub

    home = Path(hub.run_of(options.model)[0]).expanduser()
    names = None if options.metrics is None else [name for name in options.metrics.split(",") if name]
    names = [] if names == ["none"] else names
    if options.recipe is None and not (home / "run.json").is_file():
        if not home.exists() and not hub.in_cache(options.model):
            raise ValueError(f"{hub.no_such_folder(options.model)}; with a hub id, give a recipe too")
        raise ValueError("give a recipe: MODEL is not the folder of a run, so its data is unknown")
    options.recipe = options.recipe or str(home)
    description, _ = find_run(options.recipe, options.data, options.set)
    with spinner(f"reading {options.model}"):
        from anyformer.checkpoint import load
        from anyformer.data import First
        from anyformer.data.prepare import report_skipped
        from anyformer.evaluate import Evaluation
        from anyformer.evaluate.split import evaluate, select_split, tokenizer_in, write_predictions
        from anyformer.kernels import hardware
        from anyformer.objectives.metrics import TEXTS

        split, source = select_split(description.data, options.split)
        source = source if options.most is None else First(source=source, count=options.most)
        device = hardware.device(options.device)
        if names is None:  # the usual metrics of the task and those of the run
            usual = Evaluation(source, description.objective, None).names
            names = [*dict.fromkeys((*usual, *description.evaluate.metrics))]
        if home.is_file():
            if options.by:
                raise ValueError("--by position needs a model; a file of predictions has no losses")
            return score_predictions(
                home, Evaluation(source, description.objective, None, names), description.name, split
            )
        folder = hub.resolve(options.model)
        tokenizer = tokenizer_in(folder, description.vocabulary is not None)
        skip = description.data.unfit == "skip"
        evaluation = Evaluation(source, description.objective.ready(tokenizer), tokenizer, names, skip=skip)
        if options.save is not None and Path(options.save).is_dir():
            raise ValueError(f"--save {options.save} is a folder")
        model = load(folder, dtype=options.dtype, device=device)
    row: dict[str, Any] = {"length": description.batch.length, "seed": description.seed}
    if options.by:
        from dataclasses import asdict

        from anyformer.evaluate.split import evaluate_by_position

        with spinner(f"{description.name}, {split}"):
            groups = evaluate_by_position(model, split, evaluation, options.batch, **row)
        facts = {
            "model": str(folder),
            "recipe": description.name,
            "split": split,
            "examples": len(evaluation.split or ()),
        }
        return {"positions": [asdict(group) for group in groups]}, facts
    with progress(f"{description.name}, {split}") as advance:
        settings = {"size": options.batch, "num_beams": options.num_beams, "progress": advance}
        scores = evaluate(model, split, evaluation, **settings, **row)
    for line in report_skipped({split: evaluation.split}) if evaluation.split is not None else ():
        print(line, file=sys.stderr)
    if options.save is not None:
        write_predictions(Path(options.save), evaluation)
    count = len(evaluation.examples[0] if evaluation.answered is not None else evaluation.split or ())
    beams = {"num_beams": options.num_beams} if evaluation.metrics is TEXTS else {}
    return scores, {"model": str(folder), "recipe": description.name, "split": split, "examples": count, **beams}


def score_predictions(path: Path, evaluation: Any, name: str, split: str) -> tuple[dict[str, float], dict[str, Any]]:
    from anyformer.evaluate.split import read_predictions

    answered = read_predictions(path)
    facts = {"model": str(path), "recipe": name, "split": split, "examples": len(answered.wanted)}
    return evaluation.score(answered), facts
